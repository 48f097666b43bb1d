"""Rotary position embedding, in the form that rotates the two halves of a head."""

import torch


class RotaryTable:
    """Cosines and sines of every position, computed once: a position's values never depend on the batch."""

    __slots__ = ("_cos", "_sin")

    def __init__(self, head_dim: int, theta: float, context_len: int) -> None:
        inverse_freq = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
        angles = torch.outer(torch.arange(context_len, dtype=torch.float32), inverse_freq)
        self._cos = angles.cos()
        self._sin = angles.sin()

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines at `positions` [n], each [n, 1, head_dim / 2]."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [n, heads, head_dim] with each pair (i, i + head_dim / 2) turned by its position's angle."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
