"""Rotary position embedding, in the form that rotates the two halves of a head."""

import math

import torch

from engine.executor.model_config import LinearScaling, Llama3Scaling, ModelConfig


class RotaryTable:
    """Cosines and sines of every position, computed once: a position's values never depend on the batch."""

    __slots__ = ("_cos", "_sin")

    def __init__(self, config: ModelConfig) -> None:
        angles = torch.outer(torch.arange(config.context_len, dtype=torch.float32), inverse_freq(config))
        self._cos = angles.cos()
        self._sin = angles.sin()

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines at `positions` [n], each [n, 1, head_dim / 2]."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def inverse_freq(config: ModelConfig) -> torch.Tensor:
    """Radians a position by which each pair of a head turns, [head_dim / 2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    match config.rope_scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _scaled_by_wavelength(plain, scaling)


def _scaled_by_wavelength(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """As Llama 3.1 was trained: see `Llama3Scaling`."""
    waves_in_context = scaling.original_context_len / (2 * math.pi / plain)
    passage = (waves_in_context - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = passage.clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [n, heads, head_dim] with each pair (i, i + head_dim / 2) turned by its position's angle."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
