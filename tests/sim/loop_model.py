"""A shadow model that repeats itself, so that what was guessed from earlier ids is often right."""

from dataclasses import dataclass

from tests.kit.shadow_model import ShadowModel

LAST_ID_MASK = 0xFFFF
"""Low bits of a digest, which hold the last id; the others hold all of the history, as ever."""
CYCLE = 4


@dataclass(frozen=True, slots=True)
class LoopModel(ShadowModel):
    """Goes round in cycles of four ids; every now and then the whole history decides, and it jumps elsewhere.

    A wrong page still shows: sooner or later in an id, and at once in the digest that the device holds against.
    """

    surprise_percent: int = 12

    def extend(self, digest: int, token_id: int, position: int) -> int:
        mixed = ShadowModel.extend(self, digest, token_id, position)
        return mixed & ~LAST_ID_MASK | token_id & LAST_ID_MASK

    def next_id(self, digest: int) -> int:
        chance, last = digest >> 17, digest & LAST_ID_MASK
        if self.eos_id is not None and chance % 100 < self.eos_percent:
            return self.eos_id
        if (chance >> 8) % 100 < self.surprise_percent:
            token_id = (chance >> 16) % self.vocab_size
        else:
            first = last - last % CYCLE
            token_id = first + (last - first + 1) % min(CYCLE, self.vocab_size - first)
        if token_id == self.eos_id and self.eos_percent == 0:
            return (token_id + 1) % self.vocab_size
        return token_id
