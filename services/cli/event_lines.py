"""Events about the books, and the books themselves, as lines for people."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from services.cli.arguments import Place
from services.cli.top_view.inert import fit, tame
from services.client import KvBooksImage, KvEventInfo, KvWhat, PoolImage, UnitOwner
from services.client.pools import count_units

_RUNS_MAX = 6
"""Runs of units that a line names; the rest is counted."""
_POOL_WIDTH = 5
_WHAT_WIDTH = 11
_SHORT = 12
"""Cells of a name where there is not much room."""


def format_image(image: KvBooksImage) -> str:
    """A line with the place in the stream, as `--since` takes it, and what each pool's units are."""
    pools = "; ".join(f"{pool.kind}: {_count_owners(pool)}" for pool in image.pools)
    return f"{_time(image.time_s)}  books after {format_place((image.sequence, image.log_id))}  {pools}"


def format_place(place: Place) -> str:
    """As `--since` takes it."""
    sequence, log_id = place
    return f"{sequence}@{tame(log_id)}"


def format_event(event: KvEventInfo, *, is_short: bool = False) -> str:
    """As in `12:00:01.250  #17  full   parked       3 pages 4-6  request 2 -> session 1  [session chat, turn t1]`.

    `is_short`: long names lose their middle.
    """
    what = event.move if event.what is KvWhat.MOVED else str(event.what)
    words = (
        _time(event.time_s),
        f"#{event.sequence}",
        event.pool.ljust(_POOL_WIDTH),
        tame(what).ljust(_WHAT_WIDTH),
        f"{count_units(event.pool, len(event.units))} {format_units(event.units)}",
        _describe_owners(event),
        _describe_names(event, is_short=is_short),
    )
    return "  ".join(word for word in words if word)


def format_units(units: Iterable[int]) -> str:
    """Neighbours as ranges, as in `4-6, 9`; of many ranges the first."""
    runs: list[list[int]] = []
    for unit in sorted(units):
        if runs and unit == runs[-1][1] + 1:
            runs[-1][1] = unit
        else:
            runs.append([unit, unit])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:_RUNS_MAX])
    return shown + (f" and {len(runs) - _RUNS_MAX} more ranges" if len(runs) > _RUNS_MAX else "")


def _describe_owners(event: KvEventInfo) -> str:
    if event.what is KvWhat.DRAINING:
        return f"of {_describe(event.source)} until step {event.until_step}"
    return f"{_describe(event.source)} -> {_describe(event.target)}" if event.what is KvWhat.MOVED else ""


def _describe(owner: UnitOwner | None) -> str:
    return "nobody" if owner is None else str(owner)


def _describe_names(event: KvEventInfo, *, is_short: bool) -> str:
    named = (("session", tame(event.session_id)), ("turn", tame(event.turn_id)))
    names = ", ".join(f"{what} {fit(name, _SHORT) if is_short else name}" for what, name in named if name)
    return f"[{names}]" if names else ""


def _count_owners(pool: PoolImage) -> str:
    counts = Counter(owner.kind for owner in pool.owners[1:])
    told = ", ".join(f"{kind} {counts[kind]:,}" for kind in ("free", "request", "session", "cache") if counts[kind])
    return told + (f", quarantined {counts['quarantined']:,}" if counts["quarantined"] else "")


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().isoformat(timespec="milliseconds")[11:23]
