"""A decoder: embedding, blocks, norm, head. What tells one family from another is the blocks it is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.core.ownership import PoolKind
from engine.executor.attention import AttentionPlan, soft_cap
from engine.executor.kv_storage import KvStorage
from engine.executor.linear import Linear, pad_rows
from engine.executor.rope import RotaryTable
from engine.executor.state_storage import StateAccess

Norm = Callable[[torch.Tensor], torch.Tensor]
"""[n, hidden_size] → [n, hidden_size]; n a multiple of 8."""


@dataclass(frozen=True, slots=True)
class KvAccess:
    """Where the layers of one pool kind find the KV of a step."""

    attention: AttentionPlan
    write_idx: torch.Tensor
    """[num_tokens] flat places of the step's own tokens."""


class StepContext:
    """What all layers of one forward share."""

    __slots__ = ("_turns", "kv", "num_tokens", "positions", "states", "storage")

    def __init__(
        self,
        positions: torch.Tensor,
        storage: KvStorage,
        kv: Mapping[PoolKind, KvAccess],
        states: StateAccess | None,
    ) -> None:
        """`positions` is [num_tokens]. `kv` has the kinds of the model's attention layers; `states` where it has
        recurrent ones."""
        self.num_tokens = len(positions)
        self.positions = positions
        self.storage = storage
        self.kv = kv
        self.states = states
        self._turns: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def turns(self, table: RotaryTable) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the step's tokens, each [num_tokens, 1, dim / 2]."""
        found = self._turns.get(id(table))
        if found is None:
            found = self._turns[id(table)] = table.at(self.positions)
        return found


class Mixer(Protocol):
    """An attention, a recurrent or a feed-forward layer."""

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """[n, hidden_size] → [n, hidden_size] for the step's tokens; n is `step.num_tokens` padded to a multiple of 8.

        What comes of a padding row counts for nothing, and may not be non-finite in a way that reaches another row.
        """
        ...


@dataclass(frozen=True, slots=True)
class Multiplied:
    """before · x → mixer → · after"""

    before: float
    mixer: Mixer
    after: float

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.mixer(x * self.before, step) * self.after


@dataclass(frozen=True, slots=True)
class Block:
    """hidden → hidden + scale · after(sum of mixer(before(hidden)) over all mixers)"""

    before: Norm
    mixers: tuple[Mixer, ...]
    after: Norm | None = None
    scale: float = 1.0

    def __call__(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        normed = self.before(hidden)
        mixed = self.mixers[0](normed, step)
        for mixer in self.mixers[1:]:
            mixed = mixed + mixer(normed, step)
        if self.after is not None:
            mixed = self.after(mixed)
        return hidden + (mixed if self.scale == 1.0 else mixed * self.scale)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Weights in their places; KV and states are the caller's."""

    embedding: torch.Tensor
    """[vocab_size, hidden_size]"""
    blocks: tuple[Block, ...]
    output_norm: Norm
    head: Linear
    """[vocab_size, hidden_size]; the embedding's values where they are tied."""
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    """Logits are `cap · tanh(logit / cap)`."""

    def forward(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """The last hidden states, normed: [num_tokens, hidden_size]. Writes KV and states of all tokens."""
        hidden = pad_rows(self.embedding[token_ids])
        if self.embedding_scale != 1.0:
            hidden = hidden * self.embedding_scale
        for block in self.blocks:
            hidden = block(hidden, step)
        return self.output_norm(hidden)[: step.num_tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head over `hidden` [n, hidden_size]: [n, vocab_size]."""
        logits = self.head(pad_rows(hidden))[: len(hidden)]
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return logits if self.logit_cap is None else soft_cap(logits, self.logit_cap)
