"""What a turn or a session holds of each pool, as columns of a table: those of the pools that the server has."""

from collections.abc import Callable, Iterable

from services.client import SessionInfo, TurnInfo

USUAL_KINDS = ("full", "rows")
"""Pools of a server whose model has layers with full attention alone."""
Holder = TurnInfo | SessionInfo

_COLUMNS: dict[str, tuple[str, Callable[[Holder], int]]] = {
    "full": ("pages", lambda holder: holder.kv_pages),
    "swa": ("SWA pages", lambda holder: holder.swa_pages),
    "mamba": ("states", lambda holder: holder.states),
}
"""Kind of pool → head, and how many of its units are held. Nobody holds more than one row."""


def held_heads(kinds: Iterable[str]) -> tuple[str, ...]:
    """`kinds`: those of the server's pools, in order."""
    return tuple(_COLUMNS[kind][0] for kind in kinds if kind in _COLUMNS)


def held_counts(holder: Holder, kinds: Iterable[str]) -> tuple[int, ...]:
    """As many as there are heads."""
    return tuple(_COLUMNS[kind][1](holder) for kind in kinds if kind in _COLUMNS)
