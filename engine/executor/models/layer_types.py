"""Which layers of a model attend to a window only, as `layer_types` and `sliding_window` tell."""

from collections.abc import Callable
from dataclasses import replace

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec
from engine.executor.model_config import UnsupportedModelError

_KINDS = {"full_attention": PoolKind.FULL, "sliding_attention": PoolKind.SWA}


def read_window(hf: HfConfig, default: int) -> int | None:
    """`sliding_window`: `default` where it is absent, None (there are no windows) where it is null."""
    if "sliding_window" in hf.keys and hf.keys["sliding_window"] is None:
        return None
    return hf.count("sliding_window", default)


def read_kinds(hf: HfConfig, window: int | None, is_sliding: Callable[[int], bool]) -> tuple[PoolKind, ...]:
    """Each layer's kind. `is_sliding`: of a layer's number, where the configuration has no `layer_types`.

    Raises UnsupportedModelError for another number of layers, an unknown type, and windows without a size.
    """
    num_layers = hf.count("num_hidden_layers")
    told = hf.texts("layer_types")
    if told is None:
        told = tuple("sliding_attention" if is_sliding(layer) else "full_attention" for layer in range(num_layers))
    if len(told) != num_layers:
        raise UnsupportedModelError(f"layer_types has {len(told)} layers, num_hidden_layers says {num_layers}")
    unknown = sorted(set(told) - _KINDS.keys())
    if unknown:
        raise UnsupportedModelError(f"layer type {unknown[0]!r} is not implemented; known are {', '.join(_KINDS)}")
    kinds = tuple(_KINDS[layer_type] for layer_type in told)
    if window is None and PoolKind.SWA in kinds:
        raise UnsupportedModelError("layer_types has sliding_attention, and there is no sliding_window")
    return kinds


def of_kinds(spec: AttentionSpec, kinds: tuple[PoolKind, ...]) -> tuple[AttentionSpec, ...]:
    """One layer of each of `kinds`, alike in all else."""
    return tuple(replace(spec, kind=kind) for kind in kinds)
