"""A language model that is a pure function of its history: what the shadow device runs."""

from collections.abc import Iterable
from dataclasses import dataclass

_MASK = (1 << 64) - 1
EMPTY_DIGEST = 0x51ED270B
"""Digest of the empty history."""


@dataclass(frozen=True, slots=True)
class ShadowModel:
    """Next ids depend on every id before them and on its position, so a wrong page shows in the very next token."""

    vocab_size: int
    eos_id: int | None = None
    eos_percent: int = 0
    """In how many of 100 histories the next id is `eos_id`."""

    def extend(self, digest: int, token_id: int, position: int) -> int:
        """Digest of the history with `token_id` put behind it at `position`."""
        mixed = (digest * 0x2545F4914F6CDD1D + token_id * 0x632BE59BD9B4E019 + position + 1) & _MASK
        mixed ^= mixed >> 29
        mixed = (mixed * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 32)

    def digest(self, token_ids: Iterable[int]) -> int:
        """Digest of a whole history. O(tokens)."""
        digest = EMPTY_DIGEST
        for position, token_id in enumerate(token_ids):
            digest = self.extend(digest, token_id, position)
        return digest

    def next_id(self, digest: int) -> int:
        """The id that follows the history of this digest."""
        if self.eos_id is None:
            return (digest >> 8) % self.vocab_size
        if digest % 100 < self.eos_percent:
            return self.eos_id
        token_id = (digest >> 8) % self.vocab_size
        return token_id if token_id != self.eos_id else (token_id + 1) % self.vocab_size
