"""Text from token ids, as they come: the one incremental detokenizer, for streamed and joined output alike."""

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenBytes(Protocol):
    """What the detokenizer needs of a vocabulary."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark, such as the end of a turn, and no part of what is said."""
        ...


class Detokenizer:
    """Holds back nothing but the bytes of an unfinished UTF-8 character. Special tokens give no text.

    Bytes that can not become a character turn into replacement characters as soon as that is certain, so a stream never
    stalls. However the ids are split over calls, the joined text is the same.
    """

    def __init__(self, vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became certain with these ids."""
        vocabulary = self._vocabulary
        spoken = (vocabulary.token_bytes(token_id) for token_id in token_ids if not vocabulary.is_special(token_id))
        return self._decoder.decode(b"".join(spoken))

    def flush(self) -> str:
        """The end: an unfinished character becomes one replacement character."""
        return self._decoder.decode(b"", final=True)
