"""What the metrics sink knows at one moment: plain numbers that nothing changes any more."""

from collections.abc import Mapping
from typing import NamedTuple

from engine.core.ownership import Move, PoolKind
from engine.core.snapshot import PoolBooks

MoveKey = tuple[Move, PoolKind]


class Reading(NamedTuple):
    """As of the end of one `publish`: all fields belong together. Counts are of the time since `begin()`."""

    pools: tuple[PoolBooks, ...]
    moves: Mapping[MoveKey, int]
    moved_units: Mapping[MoveKey, int]
    kv_events: int
    """Of the books, since the core was made: the number of the last one, as `KvEventLog` numbers them."""
    demotions: int
    retractions: int
    tokens_from_slot: int
    tokens_from_tree: int
    tokens_to_compute: int
    tokens_generated: int
    turns_accepted: int
    endings: Mapping[str, int]
    turns_waiting: int
    turns_running: int
    sessions_opened: int
    sessions_closed: Mapping[str, int]
    sessions_open: int
    steps: int
    steps_failed: int
