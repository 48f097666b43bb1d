"""A shadow model that repeats itself, so that guesses from its own words come true now and then."""

from dataclasses import dataclass

from tests.kit.shadow_model import ShadowModel

TOKEN_BITS = 8
CYCLE_LEN = 4
REPEATS_PERCENT = 85
"""In how many of 100 histories the next id is the next one of the last id's cycle."""


@dataclass(frozen=True, slots=True)
class CyclicModel(ShadowModel):
    """Mostly walks round small cycles of ids, and jumps elsewhere where the whole history says so.

    The lowest bits of a digest are the last token id: ids are below 2 ** TOKEN_BITS.
    """

    def extend(self, digest: int, token_id: int, position: int) -> int:
        mixed = ShadowModel.extend(self, digest, token_id, position)
        return mixed >> TOKEN_BITS << TOKEN_BITS | token_id % (1 << TOKEN_BITS)

    def next_id(self, digest: int) -> int:
        history, last_id = digest >> TOKEN_BITS, digest % (1 << TOKEN_BITS)
        if history % 100 < REPEATS_PERCENT:
            return self._successor(last_id)
        return (history >> 8) % self.vocab_size

    def _successor(self, token_id: int) -> int:
        start = token_id - token_id % CYCLE_LEN
        return (start + (token_id + 1) % CYCLE_LEN) % self.vocab_size
