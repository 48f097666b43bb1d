"""The forward of a Llama: pre-norm decoder layers with grouped-query attention and a SiLU gate."""

import torch

from engine.executor.attention import AttentionPlan
from engine.executor.kv_storage import KvStorage
from engine.executor.linear import pad_rows
from engine.executor.model_config import ModelConfig
from engine.executor.norm import rms_norm, silu_and_mul
from engine.executor.rope import RotaryTable, rotate
from engine.executor.weights import LayerWeights, LlamaWeights


class LlamaModel:
    """Weights and rotary table; the KV is the caller's."""

    __slots__ = ("_config", "_rotary", "_weights")

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self._config = config
        self._weights = weights
        self._rotary = RotaryTable(config)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        write_idx: torch.Tensor,
        attention: AttentionPlan,
        kv: KvStorage,
    ) -> torch.Tensor:
        """The last hidden states, normed: [num_tokens, hidden_size]. Writes the KV of all tokens at `write_idx`."""
        num_tokens = len(token_ids)
        cos, sin = self._rotary.at(positions)
        hidden = pad_rows(self._weights.embedding[token_ids])
        for layer, weights in enumerate(self._weights.layers):
            normed = rms_norm(hidden, weights.attn_norm, self._config.rms_eps)
            query, key, value = self._project(weights, normed, num_tokens)
            kv.write(layer, write_idx, rotate(key, cos, sin), value)
            attended = attention.run(layer, rotate(query, cos, sin), kv)
            hidden = hidden + weights.attn_output(pad_rows(attended.flatten(1)))
            normed = rms_norm(hidden, weights.ffn_norm, self._config.rms_eps)
            hidden = hidden + weights.ffn_down(silu_and_mul(weights.gate_up(normed)))
        return rms_norm(hidden, self._weights.output_norm, self._config.rms_eps)[:num_tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head over `hidden` [n, hidden_size]: [n, vocab_size]."""
        return self._weights.head(pad_rows(hidden))[: len(hidden)]

    def _project(
        self, weights: LayerWeights, normed: torch.Tensor, num_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [num_tokens, num_heads, head_dim], k and v [num_tokens, num_kv_heads, head_dim]."""
        config = self._config
        heads = weights.qkv(normed)[:num_tokens].view(num_tokens, -1, config.head_dim)
        key_start, value_start = config.num_heads, config.num_heads + config.num_kv_heads
        return heads[:, :key_start], heads[:, key_start:value_start], heads[:, value_start:]
