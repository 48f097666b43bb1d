"""Prompt lookup: guesses the next ids of a turn from what followed its last ids earlier on. Pure."""

from engine.core.ids import TOKEN_BYTES

NGRAM_MAX = 3
"""Ids that must agree, at most; fewer when so many never occurred before."""
LOOKBACK = 4096
"""How many ids are looked at: what one turn may cost is the same however long its history."""
SEARCHES_MAX = 32
"""Ids can be chosen so that their bytes agree between the edges of ids over and over: then it is given up."""


def find_drafts(ids: bytes | bytearray, count: int) -> bytes:
    """`count` ids (int32 bytes) that followed the newest earlier occurrence of the last few of `ids`.

    Empty when even the last id did not occur in the last LOOKBACK ids before. Costs a few searches in these.
    """
    ids = ids[-LOOKBACK * TOKEN_BYTES :]
    for ngram in range(min(NGRAM_MAX, len(ids) // TOKEN_BYTES - 1), 0, -1):
        size = ngram * TOKEN_BYTES
        found = _rfind(ids, bytes(ids[-size:]), len(ids) - TOKEN_BYTES)
        if found is not None:
            following = bytes(ids[found + size : found + size + count * TOKEN_BYTES])
            # Near the end the text runs out: then it repeats itself, and is guessed to go on doing so.
            return (following * count)[: count * TOKEN_BYTES]
    return b""


def _rfind(ids: bytes | bytearray, pattern: bytes, stop: int) -> int | None:
    """Where `pattern` last begins on an id's edge and ends before `stop` or there. None: nowhere, or not found soon."""
    for _ in range(SEARCHES_MAX):
        found = ids.rfind(pattern, 0, stop)
        if found % TOKEN_BYTES == 0:
            return found
        if found < 0:
            return None
        stop = found + len(pattern) - 1
    return None
