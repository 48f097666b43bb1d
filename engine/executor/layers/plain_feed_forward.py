"""A dense feed-forward layer without a gate."""

from dataclasses import dataclass

import torch

from engine.executor.decoder import StepContext
from engine.executor.linear import Linear
from engine.executor.tensors import Tensors


@dataclass(frozen=True, slots=True)
class SquaredReluFeedForward:
    """down(relu(up(x))²)"""

    up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        kept = self.up(x).clamp_(min=0.0)
        return self.down(kept * kept)


def take_squared_relu(
    tensors: Tensors, prefix: str, hidden_size: int, size: int, *, has_bias: bool = False
) -> SquaredReluFeedForward:
    """The layer whose tensors begin with `prefix`, as in `model.layers.0.mixer`."""
    up_bias = tensors.take(f"{prefix}.up_proj.bias", size) if has_bias else None
    down_bias = tensors.take(f"{prefix}.down_proj.bias", hidden_size) if has_bias else None
    return SquaredReluFeedForward(
        up=Linear(tensors.take(f"{prefix}.up_proj.weight", size, hidden_size), up_bias),
        down=Linear(tensors.take(f"{prefix}.down_proj.weight", hidden_size, size), down_bias),
    )
