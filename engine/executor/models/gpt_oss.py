"""GPT-OSS: windows in every other layer, attention sinks, biases everywhere, experts with a clamped gate."""

from dataclasses import dataclass, replace

import torch

from engine.executor.decoder import Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.moe import Expert, MixtureOfExperts, MoeSpec, softmax_of_picked
from engine.executor.linear import Linear
from engine.executor.model_config import UnsupportedModelError
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds, read_kinds, read_window
from engine.executor.models.pre_norm import PreNorm, TakeFeedForward, plain_attention, pre_norm
from engine.executor.tensors import Tensors

_DEFAULTS: dict[str, object] = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "head_dim": 64,
    "num_key_value_heads": 8,
}
_ROPE: dict[str, object] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Where a configuration says nothing of rotary embedding."""
_WINDOW = 128


def read(hf: HfConfig) -> Blueprint:
    hf = replace(hf, keys=_DEFAULTS | hf.keys)
    if not hf.keys.get("rope_parameters") and not hf.keys.get("rope_scaling"):
        hf = replace(hf, keys=hf.keys | {"rope_parameters": _ROPE})
    hf.require(hidden_act="silu")
    has_bias = hf.flag("attention_bias", default=True)
    spec = replace(plain_attention(hf), has_bias=has_bias, has_output_bias=has_bias, has_sinks=True)
    window = read_window(hf, _WINDOW)
    return pre_norm(
        hf,
        PreNorm(
            attention=of_kinds(spec, read_kinds(hf, window, lambda layer: layer % 2 == 0)),
            take_feed_forward=_experts(hf),
            is_tied=hf.flag("tie_word_embeddings", default=False),
            window=window,
        ),
    )


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """g · sigmoid(alpha · g) · (u + 1), where g is gate, at most `limit`, and u is up, from -limit to limit."""

    alpha: float
    limit: float

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[n, 2 · size], gate then up → [n, size]. From exp, as in `engine.executor.norm`."""
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (gate / torch.exp(gate * -self.alpha).add_(1.0)).mul_(up.add_(1.0))


def _experts(hf: HfConfig) -> TakeFeedForward:
    hidden, gate = (
        hf.count("hidden_size"),
        ClampedGate(hf.number("swiglu_alpha", 1.702), hf.number("swiglu_limit", 7.0)),
    )
    spec = MoeSpec(
        num_experts=hf.count("num_local_experts", 128),
        top_k=hf.count("num_experts_per_tok", 4),
        size=hf.count("intermediate_size", 2880),
        score=softmax_of_picked,
    )

    def take(tensors: Tensors, prefix: str, _layer: int) -> Mixer:
        router = Linear(
            tensors.take(f"{prefix}.mlp.router.weight", spec.num_experts, hidden),
            tensors.take(f"{prefix}.mlp.router.bias", spec.num_experts),
        )
        return MixtureOfExperts(spec, router, _take_experts(tensors, f"{prefix}.mlp.experts", hidden, spec, gate))

    return take


def _take_experts(
    tensors: Tensors, prefix: str, hidden_size: int, spec: MoeSpec, gate: ClampedGate
) -> tuple[Expert, ...]:
    """All experts lie in one tensor, each [in, out]; gate and up take turns."""
    if f"{prefix}.gate_up_proj_blocks" in tensors:
        raise UnsupportedModelError(f"experts in MXFP4 ({prefix}.gate_up_proj_blocks) are not implemented")
    number, size = spec.num_experts, spec.size
    gate_up = tensors.take(f"{prefix}.gate_up_proj", number, hidden_size, 2 * size)
    gate_up_bias = tensors.take(f"{prefix}.gate_up_proj_bias", number, 2 * size)
    down = tensors.take(f"{prefix}.down_proj", number, size, hidden_size)
    down_bias = tensors.take(f"{prefix}.down_proj_bias", number, hidden_size)
    return tuple(
        Expert(
            gate_up=Linear(_halves(gate_up[expert].t()), _halves(gate_up_bias[expert])),
            down=Linear(down[expert].t().contiguous(), down_bias[expert]),
            gate=gate,
        )
        for expert in range(number)
    )


def _halves(rows: torch.Tensor) -> torch.Tensor:
    """Rows that take turns, sorted: all of the first kind, then all of the second."""
    return torch.cat((rows[::2], rows[1::2]))
