"""Rotary position embedding, in the form that rotates the two halves of a head."""

import math
from dataclasses import dataclass

import torch

from engine.executor.model_config import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: long waves divided by `factor`, short ones kept, a smooth passage between.

    A wave is long when `low_freq_factor` of it do not fit into the original context, short when `high_freq_factor` do.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN's (arXiv 2309.00071): pairs that turn seldom within the original context are slowed by `factor`, those that
    turn often are kept, a passage that is linear in the pair's number between.

    A pair turns often when it turns `beta_fast` times within the original context, seldom when it does `beta_slow`
    times.
    """

    factor: float
    original_context_len: int
    attention_factor: float
    """What cosines and sines are multiplied by. See `yarn_attention_factor`."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    """Whether the passage begins and ends at whole pairs, the next ones outwards."""

    def __post_init__(self) -> None:
        if self.beta_fast < self.beta_slow:
            raise UnsupportedModelError(
                f"yarn's beta_fast {self.beta_fast} is less than its beta_slow {self.beta_slow}"
            )


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling

BLOCK_POSITIONS = 4096
"""Positions that are computed at once."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The angles of a layer's rotary embedding. `dim`: the elements of a head that turn, from the first on."""

    dim: int
    theta: float
    context_len: int
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.dim % 2:
            raise UnsupportedModelError(f"rotary embedding needs an even head_dim, not {self.dim}")


class RotaryTable:
    """Cosines and sines by position, computed in blocks of a fixed size: a position's values never depend on the batch.

    It grows with the positions that are asked for, to the longest context at most: a whole one of a model with long
    contexts takes hundreds of megabytes. Layers whose spec is the same share one table. Not thread-safe.
    """

    __slots__ = ("_cos", "_freq", "_sin", "_spec")

    def __init__(self, spec: RopeSpec) -> None:
        self._spec = spec
        self._freq = inverse_freq(spec)
        self._cos, self._sin = self._block(0)

    @property
    def num_bytes(self) -> int:
        """What it takes now."""
        return self._cos.nbytes + self._sin.nbytes

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines at `positions` [n], at least one and all within the context, each [n, 1, dim / 2]."""
        self.reserve(int(positions.max()) + 1)
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def reserve(self, num_positions: int) -> None:
        """Computes the first `num_positions`, as far as they are not there yet."""
        if num_positions > len(self._cos):
            blocks = [self._block(start) for start in range(len(self._cos), num_positions, BLOCK_POSITIONS)]
            self._cos = torch.cat((self._cos, *(cos for cos, _ in blocks)))
            self._sin = torch.cat((self._sin, *(sin for _, sin in blocks)))

    def _block(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(start, start + BLOCK_POSITIONS, dtype=torch.float32)
        angles = torch.outer(places, self._freq)
        cos, sin = angles.cos(), angles.sin()
        if isinstance(self._spec.scaling, YarnScaling):
            cos *= self._spec.scaling.attention_factor
            sin *= self._spec.scaling.attention_factor
        return cos, sin


def inverse_freq(spec: RopeSpec) -> torch.Tensor:
    """Radians a position by which each pair of a head turns, [dim / 2] float32."""
    exponents = torch.arange(0, spec.dim, 2, dtype=torch.float32) / spec.dim
    plain = 1.0 / (spec.theta**exponents)
    match spec.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _scaled_by_wavelength(plain, scaling)
        case YarnScaling() as scaling:
            kept = 1 - _yarn_passage(spec, scaling)
            return plain / scaling.factor * (1 - kept) + plain * kept


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """The paper's `0.1 · ln(factor) + 1`; where both scales are given, the ratio of what each makes of it."""
    if not mscale or not mscale_all_dim:
        mscale, mscale_all_dim = 1.0, 0.0
    if factor <= 1:
        return 1.0
    return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all_dim * math.log(factor) + 1.0)


def _scaled_by_wavelength(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """As Llama 3.1 was trained: see `Llama3Scaling`."""
    waves_in_context = scaling.original_context_len / (2 * math.pi / plain)
    passage = (waves_in_context - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = passage.clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn_passage(spec: RopeSpec, scaling: YarnScaling) -> torch.Tensor:
    """[dim / 2] 0 for pairs that are kept, 1 for those that are slowed."""

    def pair_that_turns(times: float) -> float:
        """The pair, not a whole one, that turns so often within the original context."""
        wavelength = scaling.original_context_len / times
        return spec.dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(spec.theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.dim - 1)
    if first == last:
        last += 0.001  # As models were trained: a step rather than a division by nothing.
    pairs = torch.arange(spec.dim // 2, dtype=torch.float32)
    return ((pairs - first) / (last - first)).clamp(0.0, 1.0)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [n, heads, head_dim] with each pair (i, i + dim / 2) of its first `dim` elements turned by its position's
    angle; `dim` is twice the width of `cos`."""
    half = cos.shape[-1]
    low, high, still = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin, still), dim=-1)
