"""One attention layer run by hand over pools of its own, its keys and values being what a test says, and an oracle."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import torch

from engine.core.ids import pages_for
from engine.core.ownership import PoolKind
from engine.executor.attention import AttentionPlan, ScoreOptions
from engine.executor.batch import Batch, PoolGeometry, build_batch
from engine.executor.kv_storage import KvStorage
from engine.executor.model_config import KvLayer, ModelConfig
from tests.kit.paged_sequence import PagedSequence, make_plan

GARBAGE = 3e38
"""Nearly the largest finite float32: twice as much is none."""


class Released(Enum):
    """What becomes of a sequence's pages that lie wholly before the window of its next token."""

    KEPT = auto()
    """They stay as they are."""
    PADDED = auto()
    """The table says 0, as the core writes it."""
    STALE = auto()
    """Their contents are garbage and the table still names them: the builder of the batch has to drop them."""
    READ = auto()
    """As STALE, and the kernel is given them: what it may not see must count for nothing."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What projections would give for one sequence, each [num_tokens, heads, head_dim]."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.queries)

    def part(self, start: int, stop: int) -> "Heads":
        return Heads(self.queries[start:stop], self.keys[start:stop], self.values[start:stop])


class AttentionRig:
    """Sequences of the given lengths, their pages dealt out in turn so that none has them side by side."""

    def __init__(
        self, sequences: Sequence[Heads], *, page_size: int, window: int | None, released: Released = Released.PADDED
    ) -> None:
        first = sequences[0]
        num_heads, (num_kv_heads, head_dim) = first.queries.shape[1], first.keys.shape[1:]
        pages_each = max(pages_for(len(heads), page_size) for heads in sequences)
        num_pages = 1 + len(sequences) * pages_each
        kind = PoolKind.FULL if window is None else PoolKind.SWA
        self._config = ModelConfig(
            name="one layer",
            arch="test",
            vocab_size=2,
            hidden_size=num_heads * head_dim,
            num_heads=num_heads,
            context_len=pages_each * page_size,
            eos_ids=(1,),
            bos_id=None,
            kv_layers=(KvLayer(num_kv_heads, head_dim, kind),),
            window=window,
        )
        self._pool = PoolGeometry(
            page_size, num_pages, len(sequences) + 1, swa_pages=0 if window is None else num_pages
        )
        self._storage = KvStorage(self._config, self._pool)
        self._sequences = sequences
        self._released = released
        dealt = [[1 + place + len(sequences) * page for page in range(pages_each)] for place in range(len(sequences))]
        self._rows = [
            PagedSequence(1 + place, pages, swa_pages=None if window is None else pages[::-1])
            for place, pages in enumerate(dealt)
        ]
        self._step = 0

    def planned_len(self, place: int) -> int:
        return self._rows[place].planned_len

    def step(self, lens: Sequence[int], options: ScoreOptions) -> list[torch.Tensor]:
        """The next `lens[place]` tokens of each sequence at once (0: it sits this step out); their outputs."""
        taken = [(place, count) for place, count in enumerate(lens) if count]
        for place, _ in taken:
            self._release(place)
        starts = [self.planned_len(place) for place, _ in taken]
        self._step += 1
        planned = [self._rows[place].chunk([0] * count) for place, count in taken]
        batch = build_batch(
            make_plan(self._step, self._pool.page_size, planned, window=self._config.window), self._pool
        )
        parts = [
            self._sequences[place].part(start, start + count)
            for (place, count), start in zip(taken, starts, strict=True)
        ]
        outputs = iter(self._attend(batch, parts, options).split([len(part) for part in parts]))
        return [next(outputs) if count else torch.empty(0) for count in lens]

    def run(self, place: int, chunk_len: int, options: ScoreOptions) -> torch.Tensor:
        """One sequence to its end, alone: [num_tokens, num_heads, head_dim]."""
        length = len(self._sequences[place])
        lens = [min(chunk_len, length - start) for start in range(0, length, chunk_len)]
        alone = [[count if each == place else 0 for each in range(len(self._rows))] for count in lens]
        return torch.cat([self.step(each, options)[place] for each in alone])

    def _attend(self, batch: Batch, parts: Sequence[Heads], options: ScoreOptions) -> torch.Tensor:
        window = self._config.window
        indices, write_idx = batch.kv_indices, batch.kv_write_idx
        if window is not None:
            assert batch.swa is not None
            indices, write_idx = batch.swa.kv_indices, batch.swa.kv_write_idx
            if self._released is Released.READ:
                indices = self._tables_as_told(batch)
        queries, keys, values = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("queries", "keys", "values")
        )
        layer = self._config.kv_layers[0]
        with torch.inference_mode():
            plan = AttentionPlan(batch, indices, self._config.num_heads, layer.num_kv_heads, window)
            self._storage.write(0, torch.from_numpy(write_idx), keys, values)
            return plan.run(0, queries, self._storage, options)

    def _tables_as_told(self, batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        tables = [self._swa_table(int(row) - 1) for row in batch.sample_rows]
        lens = np.diff(batch.kv_indptr)
        return np.concatenate([np.array(table[:count], np.int32) for table, count in zip(tables, lens, strict=True)])

    def _release(self, place: int) -> None:
        window, page_size = self._config.window, self._pool.page_size
        if window is None or self._released is Released.KEPT:
            return
        table = self._swa_table(place)
        num_gone = max(0, self.planned_len(place) - (window - 1)) // page_size
        for page in range(num_gone):
            if self._released is Released.PADDED:
                table[page] = 0
            else:
                self._spoil(table[page])

    def _spoil(self, page: int) -> None:
        page_size, layer = self._pool.page_size, self._config.kv_layers[0]
        places = torch.arange(page * page_size, (page + 1) * page_size)
        garbage = torch.full((page_size, layer.num_kv_heads, layer.head_dim), GARBAGE)
        self._storage.write(0, places, garbage, -garbage)

    def _swa_table(self, place: int) -> "array[int]":
        table = self._rows[place].swa_table
        assert table is not None
        return table


def attend_in_float64(heads: Heads, window: int | None, options: ScoreOptions) -> torch.Tensor:
    """The closed formula, all keys at once: [num_tokens, num_heads, head_dim] float64."""
    group_size = heads.queries.shape[1] // heads.keys.shape[1]
    queries = heads.queries.double()
    keys, values = (each.double().repeat_interleave(group_size, dim=1) for each in (heads.keys, heads.values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    places = torch.arange(len(heads))
    distance = places[:, None] - places[None, :]
    is_seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    scores = scores.masked_fill(~is_seen, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.double()[:, None, None].expand(-1, len(heads), 1)
        scores = torch.cat((scores, sinks), dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, : len(heads)]
    return torch.einsum("hqk,khd->qhd", weights, values)


def random_heads(
    seed: int, num_tokens: int, *, num_kv_heads: int, group_size: int, head_dim: int, spread: float = 1.0
) -> Heads:
    """Normal numbers, the same for the same seed; `spread` is the standard deviation of queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num_tokens, num_kv_heads * group_size, head_dim, generator=generator) * spread
    keys = torch.randn(num_tokens, num_kv_heads, head_dim, generator=generator) * spread
    return Heads(queries, keys, torch.randn(num_tokens, num_kv_heads, head_dim, generator=generator))
