"""Runs batches through a model and its KV pools: what is left is to choose tokens."""

from collections.abc import Callable

import numpy as np
import torch

from engine.core.ownership import PoolKind
from engine.executor.attention import AttentionPlan
from engine.executor.batch import Batch, Int64Array, PoolGeometry
from engine.executor.decoder import Decoder, KvAccess, StepContext
from engine.executor.kv_storage import KvStorage
from engine.executor.model_config import ModelConfig
from engine.executor.state_storage import StateAccess, StateStorage

Tamper = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [num_tokens, hidden_size] → what is taken for them."""


class ForwardError(Exception):
    """A forward was refused, or its numbers may not be used: the reason names rows and bounds, never token ids."""


class ModelRunner:
    """Model and pools. Not thread-safe: one thread calls it."""

    __slots__ = ("_decoder", "_kv", "_states", "config", "pool")

    def __init__(self, config: ModelConfig, decoder: Decoder, pool: PoolGeometry) -> None:
        self.config = config
        self.pool = pool
        self._decoder = decoder
        self._kv = KvStorage(config, pool)
        self._states = StateStorage(config, pool.state_slots)

    @property
    def states(self) -> StateStorage:
        """The state slots. For checks, by the thread that runs the forwards."""
        return self._states

    def beside(self, pool: PoolGeometry) -> "ModelRunner":
        """The same weights over pools of its own: nothing that it writes can be read here."""
        return ModelRunner(self.config, self._decoder, pool)

    def forward(self, batch: Batch, logit_idx: Int64Array, tamper: Tamper | None = None) -> torch.Tensor:
        """Copies, then one forward. Returns the logits of the tokens `logit_idx`, [n, vocab_size] float32.

        `tamper` changes the hidden states before they are looked at. Raises ForwardError for a token id out of the
        vocabulary, a position out of the context, and for hidden states or logits that are not finite.
        """
        self._refuse_unusable(batch)
        with torch.inference_mode():
            for copy in batch.copies:
                self._kv.copy_page(copy)
            hidden = self._decoder.forward(torch.from_numpy(batch.token_ids), self._context(batch))
            if tamper is not None:
                hidden = tamper(hidden)
            _refuse_non_finite(batch, hidden, np.arange(batch.num_tokens), "hidden states")
            logits = self._decoder.logits(hidden[torch.from_numpy(logit_idx)])
            _refuse_non_finite(batch, logits, logit_idx, "logits")
        return logits

    def _context(self, batch: Batch) -> StepContext:
        config = self.config
        kv: dict[PoolKind, KvAccess] = {}
        for kind in dict.fromkeys(layer.kind for layer in config.kv_layers):
            num_kv_heads = next(layer.num_kv_heads for layer in config.kv_layers if layer.kind is kind)
            indices, write_idx, window = batch.kv_indices, batch.kv_write_idx, None
            if kind is PoolKind.SWA:
                assert batch.swa is not None, f"step {batch.step}: no SWA pages for a model with windows"
                indices, write_idx, window = batch.swa.kv_indices, batch.swa.kv_write_idx, config.window
            plan = AttentionPlan(batch, indices, config.num_heads, num_kv_heads, window)
            kv[kind] = KvAccess(plan, torch.from_numpy(write_idx))
        return StepContext(torch.from_numpy(batch.positions), self._kv, kv, self._state_access(batch))

    def _state_access(self, batch: Batch) -> StateAccess | None:
        if not self.config.state_layers:
            return None
        states = batch.states
        assert states is not None, f"step {batch.step}: no states for a model with recurrent layers"
        read_idx, write_idx = torch.from_numpy(states.read), torch.from_numpy(states.write)
        return StateAccess(self._states, batch.qo_indptr, read_idx, write_idx)

    def _refuse_unusable(self, batch: Batch) -> None:
        bad = np.flatnonzero((batch.token_ids < 0) | (batch.token_ids >= self.config.vocab_size))
        if len(bad):
            row = _row_of(batch, bad[0])
            raise ForwardError(f"plan row {row}: a token id outside the vocabulary of {self.config.vocab_size}")
        highest = int(batch.positions.max())
        if highest >= self.config.context_len:
            row = _row_of(batch, batch.positions.argmax())
            raise ForwardError(f"plan row {row}: position {highest} outside the context of {self.config.context_len}")


def _refuse_non_finite(batch: Batch, values: torch.Tensor, token_idx: Int64Array, what: str) -> None:
    is_finite = torch.isfinite(values).all(dim=-1).numpy()
    if not is_finite.all():
        row = _row_of(batch, token_idx[np.flatnonzero(~is_finite)[0]])
        raise ForwardError(f"plan row {row}: {what} that are not finite")


def _row_of(batch: Batch, token_idx: np.intp | np.int64) -> int:
    return int(np.searchsorted(batch.qo_indptr, token_idx, side="right")) - 1
