"""What one turn has generated, as its readers are told it: ids, the text that each made certain, and how it ended."""

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

from engine.core.ids import unpack_ids
from engine.runtime.detokenizer import Detokenizer, TokenBytes
from engine.runtime.handle import Delta
from engine.runtime.stop_strings import StopMatcher

DELTA_IDS_MAX = 4096
"""Most ids of one delta, so that the replay of a long answer fits a message."""


def digest_ids(packed_ids: bytes) -> bytes:
    """SHA-256 of ids (int32 bytes) as 32-bit little-endian integers."""
    ids = unpack_ids(packed_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.sha256(ids.tobytes()).digest()


class TurnOutput:
    """Grows at its end, is read from anywhere.

        ids:    | 0 | 1 | 2 | 3 | ...        text behind id i: bytes [ends[i - 1], ends[i]) of the text
        text:   |Hel|lo |   |wor| ...        the rest that was held back until the end: behind ends[-1]

    Which text belongs to which id does not depend on when it was read, so a reader can stop and go on anywhere.
    """

    def __init__(self, vocabulary: TokenBytes, stop_strings: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopMatcher(stop_strings)
        self._ids = array("i")
        self._text = bytearray()
        self._ends = array("q")
        self.is_complete = False
        """Whether nothing more will come."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def push(self, token_ids: Iterable[int]) -> bool:
        """Adds generated ids up to the one that completes a stop string. True when one of these did."""
        if self.stop_string is not None:
            return False
        for token_id in token_ids:
            self._ids.append(token_id)
            self._tell(self._stops.push(self._detokenizer.push((token_id,))))
            self._ends.append(len(self._text))
            if self._stops.is_found():
                return True
        return False

    def complete(self) -> None:
        """The end: text that was held back is told behind the last id. Idempotent."""
        if not self.is_complete:
            if self._stops.found is None:
                # An unfinished character becomes a replacement character, which may complete a stop string, too.
                certain = self._stops.push(self._detokenizer.flush())
                self._tell(certain + self._stops.flush())
            self.is_complete = True

    def read(self, start: int) -> Delta:
        """The ids from `start` on, at most DELTA_IDS_MAX, with their text."""
        stop = min(len(self._ids), start + DELTA_IDS_MAX)
        text = self._text[self._end_of(start) : self._end_of(stop)]
        return Delta(start, tuple(self._ids[start:stop]), text.decode())

    def read_rest(self) -> Delta | None:
        """Text that was held back until the end, if any."""
        rest = self._text[self._end_of(len(self._ids)) :].decode()
        return Delta(len(self._ids), (), rest) if rest else None

    def packed_ids(self) -> bytes:
        """All ids, as int32 bytes."""
        return self._ids.tobytes()

    def _tell(self, text: str) -> None:
        self._text += text.encode()

    def _end_of(self, num_ids: int) -> int:
        return self._ends[num_ids - 1] if num_ids else 0
