"""The shape of a model, as far as others than its own layers have to know it."""

from dataclasses import dataclass

from engine.core.ownership import PoolKind


class UnsupportedModelError(Exception):
    """The model needs something that is not implemented: the message names it."""


@dataclass(frozen=True, slots=True)
class KvLayer:
    """What one attention layer keeps of a token: K and V, each `[num_kv_heads, head_dim]`."""

    num_kv_heads: int
    head_dim: int
    kind: PoolKind = PoolKind.FULL
    """FULL, or SWA where the layer attends to the model's window only."""


@dataclass(frozen=True, slots=True)
class StateLayer:
    """What one recurrent layer keeps of a whole sequence."""

    conv_shape: tuple[int, int]
    """[channels, kernel - 1]: the last inputs of its convolution."""
    ssm_shape: tuple[int, int, int]
    """[num_heads, head_dim, state_size]"""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only model. Lengths in tokens, sizes in elements."""

    name: str
    arch: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    """Query heads of each attention layer."""
    context_len: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    kv_layers: tuple[KvLayer, ...]
    """One for each attention layer, in order."""
    state_layers: tuple[StateLayer, ...] = ()
    """One for each recurrent layer, in order."""
    window: int | None = None
    """Positions that a token attends to in the SWA layers, its own included; None: there are no such layers."""

    def __post_init__(self) -> None:
        has_windows = any(layer.kind is PoolKind.SWA for layer in self.kv_layers)
        assert has_windows == (self.window is not None), f"{self.name}: window {self.window}, layers {self.kv_layers}"
        if self.window is not None and self.window < 1:
            raise UnsupportedModelError(f"a sliding window has at least 1 token, not {self.window}")
        for layer in self.kv_layers:
            if self.num_heads % layer.num_kv_heads:
                raise UnsupportedModelError(f"{self.num_heads} heads do not divide by {layer.num_kv_heads} KV heads")

    @property
    def pool_kinds(self) -> tuple[PoolKind, ...]:
        """Pools that a sequence of this model has KV or state in. FULL always: its pages are what prefixes go by."""
        kinds = [PoolKind.FULL]
        kinds += [PoolKind.SWA] if self.window is not None else []
        kinds += [PoolKind.MAMBA] if self.state_layers else []
        return tuple(kinds)
