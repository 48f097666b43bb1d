"""Root-mean-square norm and the SiLU gate, element by element in exact float32 steps."""

import torch


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
