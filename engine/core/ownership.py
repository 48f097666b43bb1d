"""The vocabulary of ownership: pool kinds, owners, moves, and the table of what may move where."""

from dataclasses import dataclass
from enum import StrEnum


class PoolKind(StrEnum):
    """What a pool counts: `full` and `swa` pages, `mamba` state slots, `rows` request rows.

    An engine has the kinds that its model has layers for; `full` and `rows` always.
    """

    FULL = "full"
    SWA = "swa"
    MAMBA = "mamba"
    ROWS = "rows"


class OwnerKind(StrEnum):
    FREE = "free"
    REQUEST = "request"
    SESSION = "session"
    CACHE = "cache"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a page. `name` is the rid of a request or the uid of a session; the other kinds have one owner each."""

    kind: OwnerKind
    name: int = 0

    def __str__(self) -> str:
        named = self.kind in (OwnerKind.REQUEST, OwnerKind.SESSION)
        return f"{self.kind}:{self.name}" if named else str(self.kind)


FREE = Owner(OwnerKind.FREE)
CACHE = Owner(OwnerKind.CACHE)
QUARANTINED = Owner(OwnerKind.QUARANTINED)


class Move(StrEnum):
    """The moves of ownership. Each value is also the KV event's name in the third column of `MOVES`."""

    GRANT = "grant"
    DONATE = "donate"
    PARK = "park"
    LEND = "lend"
    RETURN = "return"
    PUBLISH = "publish"
    DEMOTE = "demote"
    EVICT = "evict"
    RELEASE = "release"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class MoveRule:
    """From which kinds of owner to which, and the past tense under which the KV event is told."""

    sources: tuple[OwnerKind, ...]
    target: OwnerKind
    event: str


MOVES: dict[Move, MoveRule] = {
    Move.GRANT: MoveRule((OwnerKind.FREE,), OwnerKind.REQUEST, "granted"),
    Move.DONATE: MoveRule((OwnerKind.REQUEST,), OwnerKind.CACHE, "stored"),
    Move.PARK: MoveRule((OwnerKind.REQUEST,), OwnerKind.SESSION, "parked"),
    Move.LEND: MoveRule((OwnerKind.SESSION,), OwnerKind.REQUEST, "lent"),
    Move.RETURN: MoveRule((OwnerKind.REQUEST,), OwnerKind.SESSION, "returned"),
    Move.PUBLISH: MoveRule((OwnerKind.SESSION,), OwnerKind.CACHE, "published"),
    Move.DEMOTE: MoveRule((OwnerKind.SESSION,), OwnerKind.CACHE, "demoted"),
    Move.EVICT: MoveRule((OwnerKind.CACHE,), OwnerKind.FREE, "removed"),
    Move.RELEASE: MoveRule((OwnerKind.REQUEST, OwnerKind.SESSION), OwnerKind.FREE, "released"),
    Move.QUARANTINE: MoveRule(
        (OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION, OwnerKind.CACHE), OwnerKind.QUARANTINED, "quarantined"
    ),
}

CIRCULATING_KINDS: dict[PoolKind, tuple[OwnerKind, ...]] = {
    PoolKind.FULL: (OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION, OwnerKind.CACHE),
    PoolKind.SWA: (OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION, OwnerKind.CACHE),
    PoolKind.MAMBA: (OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION, OwnerKind.CACHE),
    PoolKind.ROWS: (OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION),
}
"""Which kinds of owner a unit of each pool may have while it is in circulation: the cache never owns a row."""

PAGED_KINDS = (PoolKind.FULL, PoolKind.SWA)
"""Pools whose units hold the KV of `page_size` tokens."""
CACHED_KINDS = (PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA)
"""Pools of whose units the cache may own some."""
