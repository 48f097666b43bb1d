"""Families of models by the `model_type` of their configuration."""

from engine.executor.hf_config import HfConfig
from engine.executor.model_config import UnsupportedModelError
from engine.executor.models import (
    bamba,
    falcon_h1,
    gemma2,
    gemma3,
    gpt_oss,
    granite_hybrid,
    llama,
    mistral,
    mixtral,
    nemotron_h,
    qwen2,
    qwen3,
    qwen3_moe,
)
from engine.executor.models.blueprint import Blueprint, Family

FAMILIES: dict[str, Family] = {
    "bamba": bamba.read,
    "falcon_h1": falcon_h1.read,
    "gemma2": gemma2.read,
    "gemma3_text": gemma3.read,
    "gpt_oss": gpt_oss.read,
    "granitemoehybrid": granite_hybrid.read,
    "llama": llama.read,
    "mistral": mistral.read,
    "mixtral": mixtral.read,
    "nemotron_h": nemotron_h.read,
    "qwen2": qwen2.read,
    "qwen3": qwen3.read,
    "qwen3_moe": qwen3_moe.read,
}


def read_blueprint(hf: HfConfig) -> Blueprint:
    """Raises UnsupportedModelError for a model_type or an option that is not implemented."""
    family = FAMILIES.get(hf.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModelError(f"model_type {hf.model_type!r} is not implemented; known are {known}")
    hf.require(quantization_config=None, is_causal=True)
    return family(hf)
