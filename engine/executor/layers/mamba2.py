"""Mamba2: a short causal convolution, then a linear recurrence for each head, bit for bit the same however it is cut.

A token's state is always made of the one before it, token by token: a scan over chunks would sum in another order
wherever a chunk is cut. All that does not depend on the state is computed for all tokens at once, and the recurrence
runs through all rows of a step together.
"""

import math
from dataclasses import dataclass

import torch

from engine.executor.decoder import StepContext
from engine.executor.linear import Linear, pad_rows
from engine.executor.model_config import StateLayer, UnsupportedModelError
from engine.executor.norm import rms_norm
from engine.executor.state_storage import InputWindows, ScanOrder, StateAccess
from engine.executor.tensors import Tensors


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """How the output meets its gate: a norm over each group of channels, and the gate's SiLU."""

    eps: float
    is_before_gate: bool = False
    """Whether it is the output that is normed, or else the product of output and gate."""


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """What a Mamba2 layer is like."""

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    """Heads of one group share their B and C."""
    kernel_size: int
    norm: GatedNorm | None
    """None: the output is multiplied with the gate's SiLU and nothing else."""
    time_step_min: float = 0.0
    time_step_max: float = math.inf
    has_conv_bias: bool = True
    has_input_bias: bool = False
    has_output_bias: bool = False
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Of what the input projection yields: gate, x, B, C and time step."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_groups:
            raise UnsupportedModelError(f"{self.num_heads} Mamba heads do not divide by {self.num_groups} groups")

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def parts(self) -> tuple[int, int, int, int, int]:
        """Sizes of gate, x, B, C and time step in what the input projection yields."""
        shared = self.num_groups * self.state_size
        return self.inner_size, self.inner_size, shared, shared, self.num_heads

    @property
    def channels(self) -> int:
        """Of the convolution: x, B and C."""
        return sum(self.parts[1:4])

    @property
    def state_layer(self) -> StateLayer:
        return StateLayer(
            (self.channels, self.kernel_size - 1),
            (self.num_heads, self.head_dim, self.state_size),
        )


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A layer with its weights."""

    number: int
    """Among the model's recurrent layers, from 0."""
    spec: Mamba2Spec
    input: Linear
    """Rows of gate, x, B, C and time step."""
    conv_weight: torch.Tensor
    """[kernel_size, channels], the oldest input first."""
    conv_bias: torch.Tensor | None
    """[channels]"""
    time_step_bias: torch.Tensor
    """[num_heads]"""
    decay_rate: torch.Tensor
    """[num_heads] A: a state fades to exp(time step · A) of itself."""
    skip: torch.Tensor
    """[num_heads, 1] D: the share of x that passes by the state."""
    norm_weight: torch.Tensor | None
    """[num_groups, inner_size / num_groups]"""
    output: Linear

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        states, spec = step.states, self.spec
        assert states is not None, "a recurrent layer in a model that has no states"
        gate, inputs, time_steps = self.input(x).split((spec.inner_size, spec.channels, spec.num_heads), dim=-1)
        mixed = silu(self._convolve(inputs[: step.num_tokens], states))
        scanned = self._scan(mixed, time_steps[: step.num_tokens], states)
        return self.output(self._gated(pad_rows(scanned), gate))

    def _convolve(self, inputs: torch.Tensor, states: StateAccess) -> torch.Tensor:
        """[num_tokens, channels] → the same; reads and writes the last inputs of each row."""
        pool = states.storage.conv[self.number]
        windows = states.windows(self.spec.kernel_size)
        line = _laid_out(inputs, pool.index_select(0, states.read_idx), windows)
        out = line.index_select(0, windows.first) * self.conv_weight[0]
        for place in range(1, self.spec.kernel_size):
            out.add_(line.index_select(0, windows.first + place) * self.conv_weight[place])
        last = line.index_select(0, windows.last).view(len(states.write_idx), -1, self.spec.channels)
        pool.index_copy_(0, states.write_idx, last.transpose(1, 2))
        return out if self.conv_bias is None else out.add_(self.conv_bias)

    def _scan(self, mixed: torch.Tensor, time_steps: torch.Tensor, states: StateAccess) -> torch.Tensor:
        """x, B and C [num_tokens, channels] → [num_tokens, inner_size]; reads and writes the state of each row."""
        spec, order = self.spec, states.order
        grouped = (len(mixed), spec.num_groups, spec.num_heads // spec.num_groups)
        x, b, c = mixed.index_select(0, order.tokens).split(spec.parts[1:4], dim=-1)
        steps = softplus(time_steps.index_select(0, order.tokens) + self.time_step_bias)
        steps = steps.clamp(spec.time_step_min, spec.time_step_max)
        decays = torch.exp(steps * self.decay_rate).view(*grouped, 1, 1)
        x = x.reshape(len(mixed), spec.num_heads, spec.head_dim)
        driven = (x * steps.unsqueeze(-1)).view(*grouped, spec.head_dim, 1)
        b, c = (part.reshape(len(mixed), spec.num_groups, 1, 1, spec.state_size) for part in (b, c))

        pool, read_idx = states.storage.ssm[self.number], states.read_idx[order.rows]
        state = pool.index_select(0, read_idx).view(len(read_idx), *grouped[1:], spec.head_dim, spec.state_size)
        out = _recur(state, decays, driven, b, c, order)
        pool.index_copy_(0, states.write_idx[order.rows], state.flatten(1, 2))
        out = out.view(x.shape).add_(x * self.skip)
        return out.index_select(0, order.places).flatten(1)

    def _gated(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`x` and `gate` [n, inner_size] → the same; n a multiple of 8."""
        norm, weight = self.spec.norm, self.norm_weight
        if norm is None or weight is None:
            return x * silu(gate)
        if norm.is_before_gate:
            return _group_norm(x, weight, norm.eps) * silu(gate)
        return _group_norm(x * silu(gate), weight, norm.eps)


def take_mamba2(tensors: Tensors, prefix: str, number: int, spec: Mamba2Spec, hidden_size: int) -> Mamba2:
    """The layer whose tensors begin with `prefix`, as in `model.layers.0.mamba`."""
    inner, heads = spec.inner_size, spec.num_heads
    conv_weight = tensors.take(f"{prefix}.conv1d.weight", spec.channels, 1, spec.kernel_size)
    norm_weight = None if spec.norm is None else tensors.take(f"{prefix}.norm.weight", inner)
    output_bias = tensors.take(f"{prefix}.out_proj.bias", hidden_size) if spec.has_output_bias else None
    return Mamba2(
        number=number,
        spec=spec,
        input=_take_input(tensors, f"{prefix}.in_proj", spec, hidden_size),
        conv_weight=conv_weight.squeeze(1).t().contiguous(),
        conv_bias=tensors.take(f"{prefix}.conv1d.bias", spec.channels) if spec.has_conv_bias else None,
        time_step_bias=tensors.take(f"{prefix}.dt_bias", heads),
        decay_rate=-torch.exp(tensors.take(f"{prefix}.A_log", heads)),
        skip=tensors.take(f"{prefix}.D", heads).unsqueeze(-1),
        norm_weight=None if norm_weight is None else norm_weight.view(spec.num_groups, -1),
        output=Linear(tensors.take(f"{prefix}.out_proj.weight", hidden_size, inner), output_bias),
    )


def silu(x: torch.Tensor) -> torch.Tensor:
    """Written out for the same reason as `engine.executor.norm.silu_and_mul`."""
    return x / torch.exp(-x).add_(1.0)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """`log(1 + exp(x))`, written out likewise, and in a form that never overflows."""
    return torch.log1p(torch.exp(-x.abs())).add_(x.clamp(min=0.0))


def _take_input(tensors: Tensors, name: str, spec: Mamba2Spec, hidden_size: int) -> Linear:
    """The projection with the multipliers of its parts in its weights."""
    size = sum(spec.parts)
    scales = torch.cat([torch.full((part,), scale) for part, scale in zip(spec.parts, spec.multipliers, strict=True)])
    weight = tensors.take(f"{name}.weight", size, hidden_size) * scales.unsqueeze(-1)
    return Linear(weight, tensors.take(f"{name}.bias", size) * scales if spec.has_input_bias else None)


def _laid_out(inputs: torch.Tensor, before: torch.Tensor, windows: InputWindows) -> torch.Tensor:
    """The line that `windows` are places in, [n, channels]; `before` is [num_rows, channels, kernel_size - 1]."""
    line = inputs.new_empty(len(windows.before) + len(windows.own), inputs.shape[1])
    line.index_copy_(0, windows.before, before.transpose(1, 2).reshape(-1, inputs.shape[1]))
    return line.index_copy_(0, windows.own, inputs)


def _recur(
    state: torch.Tensor,
    decays: torch.Tensor,
    driven: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    order: ScanOrder,
) -> torch.Tensor:
    """`state` ← decay · state + driven ⊗ b, and yields state · c, token by token: [num_tokens, ..., head_dim].

    `state` is [num_rows, groups, heads of a group, head_dim, state_size], changed in place; the others lead with
    [num_tokens], in the order of the scan.
    """
    out = driven.new_empty(driven.shape[:-1])
    # One for all tokens: a fresh one each time costs more than the arithmetic, as the system has to zero its pages.
    products = torch.empty_like(state)
    start = 0
    for num_rows in order.rows_at:
        now, product = slice(start, start + num_rows), products[:num_rows]
        torch.mul(driven[now], b[now], out=product)
        current = state[:num_rows].mul_(decays[now]).add_(product)
        torch.mul(current, c[now], out=product)
        torch.sum(product, dim=-1, out=out[now])
        start += num_rows
    return out


def _group_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each group of `x` [n, size]; `weight` is [num_groups, size / num_groups]."""
    return rms_norm(x.view(len(x), *weight.shape), weight, eps).flatten(1)
