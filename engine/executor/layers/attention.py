"""Self-attention over paged KV: projections, norms and turns of heads around the attention itself."""

from dataclasses import dataclass

import torch

from engine.core.ownership import PoolKind
from engine.executor.attention import ScoreOptions
from engine.executor.decoder import Decoder, Multiplied, StepContext
from engine.executor.linear import Linear, pad_rows
from engine.executor.model_config import KvLayer
from engine.executor.norm import RmsNorm, take_norm
from engine.executor.rope import RotaryTable, rotate
from engine.executor.tensors import Tensors


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What an attention layer is like."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """What scores are multiplied by before anything else is done to them."""
    rotary: RotaryTable | None
    """None: positions are told to the layer by nothing but what it may see."""
    kind: PoolKind = PoolKind.FULL
    """SWA where it attends to the model's window only."""
    soft_cap: float | None = None
    """Scores are `cap · tanh(score / cap)`."""
    has_bias: bool = False
    """Of the projections to q, k and v."""
    has_output_bias: bool = False
    head_norm_eps: float | None = None
    """Of the norms that each head of q and k passes before it is turned; None: there are none."""
    is_head_norm_offset: bool = False
    """Whether the weights of these are stored as the difference from 1."""
    has_sinks: bool = False
    """Whether each head has a score that takes its part of the softmax and gives no value."""

    @property
    def kv_layer(self) -> KvLayer:
        return KvLayer(self.num_kv_heads, self.head_dim, self.kind)


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer with its weights."""

    number: int
    """Among the model's attention layers, from 0."""
    spec: AttentionSpec
    options: ScoreOptions
    qkv: Linear
    """Rows of q, then k, then v; q and k turn by halves."""
    output: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        spec, num_tokens = self.spec, step.num_tokens
        heads = self.qkv(x)[:num_tokens].view(num_tokens, -1, spec.head_dim)
        key_start, value_start = spec.num_heads, spec.num_heads + spec.num_kv_heads
        query, key, value = heads[:, :key_start], heads[:, key_start:value_start], heads[:, value_start:]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if spec.rotary is not None:
            cos, sin = step.turns(spec.rotary)
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        access = step.kv[spec.kind]
        step.storage.write(self.number, access.write_idx, key, value)
        attended = access.attention.run(self.number, query, step.storage, self.options)
        return self.output(pad_rows(attended.flatten(1)))


def rotary_tables(decoder: Decoder) -> tuple[RotaryTable, ...]:
    """The tables of all attention layers, each once."""
    mixers = [mixer for block in decoder.blocks for mixer in block.mixers]
    plain = [mixer.mixer if isinstance(mixer, Multiplied) else mixer for mixer in mixers]
    tables = [mixer.spec.rotary for mixer in plain if isinstance(mixer, Attention)]
    return tuple(dict.fromkeys(table for table in tables if table is not None))


def take_attention(tensors: Tensors, prefix: str, number: int, spec: AttentionSpec, hidden_size: int) -> Attention:
    """The attention whose tensors begin with `prefix`, as in `model.layers.0.self_attn`."""
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    weights = [tensors.take(f"{prefix}.{name}.weight", size, hidden_size) for name, size in sizes.items()]
    bias = None
    if spec.has_bias:
        bias = torch.cat([tensors.take(f"{prefix}.{name}.bias", size) for name, size in sizes.items()])
    output_bias = tensors.take(f"{prefix}.o_proj.bias", hidden_size) if spec.has_output_bias else None
    return Attention(
        number=number,
        spec=spec,
        options=ScoreOptions(
            scale=spec.scale,
            soft_cap=spec.soft_cap,
            sinks=tensors.take(f"{prefix}.sinks", spec.num_heads) if spec.has_sinks else None,
        ),
        qkv=Linear(torch.cat(weights), bias),
        output=Linear(tensors.take(f"{prefix}.o_proj.weight", hidden_size, q_size), output_bias),
        query_norm=_take_head_norm(tensors, f"{prefix}.q_norm", spec),
        key_norm=_take_head_norm(tensors, f"{prefix}.k_norm", spec),
    )


def _take_head_norm(tensors: Tensors, name: str, spec: AttentionSpec) -> RmsNorm | None:
    if spec.head_norm_eps is None:
        return None
    return take_norm(tensors, name, spec.head_dim, spec.head_norm_eps, is_offset=spec.is_head_norm_offset)
