"""Dense feed-forward layers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.executor.decoder import StepContext
from engine.executor.linear import Linear
from engine.executor.norm import silu_and_mul
from engine.executor.tensors import Tensors

Gate = Callable[[torch.Tensor], torch.Tensor]
"""[n, 2 · size], gate then up → [n, size]"""


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """down(gate(x) · up(x)), with an activation on the gate."""

    gate_up: Linear
    """Rows of gate, then up."""
    down: Linear
    gate: Gate = silu_and_mul

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.down(self.gate(self.gate_up(x)))


def take_gated(
    tensors: Tensors,
    prefix: str,
    hidden_size: int,
    size: int,
    gate: Gate = silu_and_mul,
    *,
    has_bias: bool = False,
) -> GatedFeedForward:
    """The layer whose tensors begin with `prefix`, as in `model.layers.0.mlp`. `has_bias`: all three matrices."""
    names = ("gate_proj", "up_proj")
    gate_up = [tensors.take(f"{prefix}.{name}.weight", size, hidden_size) for name in names]
    down = tensors.take(f"{prefix}.down_proj.weight", hidden_size, size)
    gate_up_bias, down_bias = None, None
    if has_bias:
        gate_up_bias = torch.cat([tensors.take(f"{prefix}.{name}.bias", size) for name in names])
        down_bias = tensors.take(f"{prefix}.down_proj.bias", hidden_size)
    return GatedFeedForward(Linear(torch.cat(gate_up), gate_up_bias), Linear(down, down_bias), gate)
