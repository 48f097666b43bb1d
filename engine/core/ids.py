"""Names and numbers that identify things, each a type of its own."""

from __future__ import annotations  # `array[int]` exists at run time only from Python 3.12

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import NewType

Rid = NewType("Rid", int)
"""One submission of a turn. Minted by the shell, unique for the life of the process, never reused."""

TurnId = NewType("TurnId", str)
"""The client's name for a turn, and the name of its node in the session's tree."""

SessionId = NewType("SessionId", str)
"""The client's name for a session, unique while it is open."""

StepNo = NewType("StepNo", int)
"""Number of a plan, from 1. Plans are answered in this order."""

TOKEN_BYTES = 4
"""Token ids are kept as native-endian int32 bytes: slicing, joining and comparing them is a memcpy or a memcmp."""


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as int32 bytes. Raises OverflowError for an id that does not fit 32 bits."""
    return array("i", token_ids).tobytes()


pack_id = Struct("=i").pack
"""One token id, as `pack_ids` does it: for the id that each step adds to a turn. Raises struct.error past 32 bits."""


def unpack_ids(packed: bytes) -> array[int]:
    """The inverse of `pack_ids`."""
    return array("i", packed)


def count_ids(packed: bytes) -> int:
    """Number of token ids in `packed`."""
    return len(packed) // TOKEN_BYTES


def slice_ids(packed: bytes, start: int, stop: int) -> bytes:
    """The ids at positions [start, stop)."""
    return packed[start * TOKEN_BYTES : stop * TOKEN_BYTES]


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // page_size)
