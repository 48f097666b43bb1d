"""The server's books, as its client sees them."""

from collections.abc import Iterable
from dataclasses import dataclass

from protos.v1 import admin_pb2, ownership_pb2

KINDS = {
    ownership_pb2.POOL_KIND_FULL: "full",
    ownership_pb2.POOL_KIND_SWA: "swa",
    ownership_pb2.POOL_KIND_MAMBA: "mamba",
    ownership_pb2.POOL_KIND_ROWS: "rows",
}
"""Kinds of pools by name. A server has pages and rows, and the others as its model needs them."""
_UNITS = {"full": "page", "swa": "SWA page", "mamba": "state", "rows": "row"}
"""What the units of a pool are called; each has an s more in the plural."""


def name_units(kind: str) -> str:
    """As in `SWA pages`."""
    return f"{_UNITS.get(kind, 'unit')}s"


def name_unit(kind: str, unit: int) -> str:
    """As in `full page 53`, `SWA page 7`, `state 3` or `row 1`."""
    return f"full page {unit}" if kind == "full" else f"{_UNITS.get(kind, f'{kind} unit')} {unit}"


def count_units(kind: str, count: int) -> str:
    """As in `1 page` or `12 states`."""
    return f"{count:,} {_UNITS.get(kind, 'unit')}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool, in units. available + evictable + protected + session_held + uncached = total."""

    kind: str
    total: int
    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    draining: int
    quarantined: int
    page_size: int

    @property
    def cached(self) -> int:
        """Units of the prefix cache, used or not."""
        return self.evictable + self.protected


@dataclass(frozen=True, slots=True)
class PoolStats:
    """All pools at one instant, and what stands behind them."""

    pools: tuple[Pool, ...]
    sessions_open: int
    turns_running: int
    turns_waiting: int
    slots_held: int
    slots_demoted: int
    steps: int
    checks_run: int
    balanced: bool
    kv_sequence: int = 0
    """The last of the KV events that are in it, and the log which it is of."""
    kv_log_id: str = ""

    def find(self, kind: str) -> Pool:
        """The pool of that kind. Raises KeyError."""
        return find_pool(self.pools, kind)


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush has freed."""

    pages: int
    swa_pages: int
    states: int


def find_pool(pools: Iterable[Pool], kind: str) -> Pool:
    """The one of that kind. Raises KeyError."""
    for pool in pools:
        if pool.kind == kind:
            return pool
    raise KeyError(kind)


def decode_pools(response: admin_pb2.PoolStatsResponse) -> PoolStats:
    return PoolStats(
        pools=tuple(decode_pool(pool) for pool in response.pools),
        sessions_open=response.sessions_open,
        turns_running=response.turns_running,
        turns_waiting=response.turns_waiting,
        slots_held=response.slots_held,
        slots_demoted=response.slots_demoted,
        steps=response.steps,
        checks_run=response.checks_run,
        balanced=response.balanced,
        kv_sequence=response.kv_sequence,
        kv_log_id=response.kv_log_id,
    )


def decode_pool(pool: admin_pb2.Pool) -> Pool:
    return Pool(
        kind=KINDS.get(pool.kind, f"kind {pool.kind}"),
        total=pool.total,
        available=pool.available,
        evictable=pool.evictable,
        protected=pool.protected,
        session_held=pool.session_held,
        uncached=pool.uncached,
        draining=pool.draining,
        quarantined=pool.quarantined,
        page_size=pool.page_size,
    )
