"""Root-mean-square norm and the gates of feed-forwards, element by element in exact float32 steps."""

import math
from dataclasses import dataclass

import torch

from engine.executor.tensors import Tensors

_GELU_CUBIC = 0.044715
_GELU_SCALE = math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """`x / sqrt(mean(x²) + eps) · weight` over the last dimension."""

    weight: torch.Tensor
    """[size]"""
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x is [..., size]; in front of that as many rows as is a multiple of 8, or one for each head of a token."""
        return rms_norm(x, self.weight, self.eps)


def take_norm(tensors: Tensors, name: str, size: int, eps: float, *, is_offset: bool = False) -> RmsNorm:
    """The norm `name`. With `is_offset` its weight is stored as the difference from 1."""
    weight = tensors.take(f"{name}.weight", size)
    return RmsNorm(1.0 + weight if is_offset else weight, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x²) + eps) · weight` for x [n, hidden]; n a multiple of 8."""
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True).add_(eps))
    return weight * (x * scale)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) · up` for the two halves of gate_up [n, 2 · ffn].

    Written out: the library's silu computes what is left over behind the last whole vector by another formula, and
    where that lies depends on the number of rows and threads.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return (gate / torch.exp(-gate).add_(1.0)).mul_(up)


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) · up` for the two halves of gate_up [n, 2 · ffn], gelu in its tanh approximation.

    Since `(1 + tanh(u)) / 2` is `1 / (1 + exp(-2u))`, it is written out from exp as in `silu_and_mul`, and for the same
    reason. An exp that overflows gives 0, as it should.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    inner = (gate * gate).mul_(gate).mul_(_GELU_CUBIC).add_(gate).mul_(-2.0 * _GELU_SCALE)
    return (gate / inner.exp_().add_(1.0)).mul_(up)
