"""What the hybrid families read alike: the keys of a Mamba2 mixer, and which layer is of which kind."""

import math
from collections import Counter
from collections.abc import Sequence

from engine.executor.hf_config import HfConfig
from engine.executor.layers.mamba2 import GatedNorm, Mamba2Spec
from engine.executor.model_config import UnsupportedModelError


def read_mamba2(hf: HfConfig, inner_size: int, norm: GatedNorm | None) -> Mamba2Spec:
    """The keys that begin with `mamba_`. `inner_size` is that of all heads together."""
    num_heads = hf.count("mamba_n_heads")
    if inner_size % num_heads:
        raise UnsupportedModelError(f"an inner size of {inner_size} does not divide by {num_heads} Mamba heads")
    head_dim = inner_size // num_heads
    if hf.keys.get("mamba_d_head") != "auto":
        hf.require(mamba_d_head=head_dim)
    time_step_min, time_step_max = read_time_step_limit(hf)
    has_bias = hf.flag("mamba_proj_bias", default=False)
    return Mamba2Spec(
        num_heads=num_heads,
        head_dim=head_dim,
        state_size=hf.count("mamba_d_state"),
        num_groups=hf.count("mamba_n_groups", 1),
        kernel_size=hf.count("mamba_d_conv", 4),
        norm=norm,
        time_step_min=time_step_min,
        time_step_max=time_step_max,
        has_conv_bias=hf.flag("mamba_conv_bias", default=True),
        has_input_bias=has_bias,
        has_output_bias=has_bias,
    )


def read_time_step_limit(hf: HfConfig) -> tuple[float, float]:
    """`time_step_limit`: the least and the greatest time step."""
    told = hf.keys.get("time_step_limit")
    if told is None:
        return 0.0, math.inf
    limits = [_limit(value) for value in told] if isinstance(told, list) else []
    match limits:
        case [float(least), float(greatest)] if least <= greatest:
            return least, greatest
    raise UnsupportedModelError(f"time_step_limit is {told!r}, not the least and the greatest time step")


def read_attention_layers(told: Sequence[str], names: dict[str, bool]) -> tuple[bool, ...]:
    """Of each layer, whether it is an attention. `names`: the types that are known, and whether they are one."""
    unknown = sorted(set(told) - names.keys())
    if unknown:
        raise UnsupportedModelError(f"layer type {unknown[0]!r} is not implemented; known are {', '.join(names)}")
    return tuple(names[layer_type] for layer_type in told)


def numbered(kinds: Sequence[object]) -> tuple[int, ...]:
    """Of each layer its number among those of its kind, from 0."""
    seen: Counter[object] = Counter()
    numbers: list[int] = []
    for kind in kinds:
        numbers.append(seen[kind])
        seen[kind] += 1
    return tuple(numbers)


def _limit(value: object) -> float | None:
    """A number, as JSON or as transformers writes what JSON has no number for; None for anything else."""
    if isinstance(value, dict) and value == {"__float__": "Infinity"}:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
