"""The books in words: where a turn's context came from, and who owns the pages."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.client import FinishReason, Pool, PoolStats, Turn, Usage
from services.client.pools import name_units

_COLUMNS = ("pool", "available", "evictable", "protected", "session", "uncached", "total")


@dataclass(slots=True)
class TurnBook:
    """Numbers the turns of a session, and knows which of them is its last."""

    attempts: int = 0
    last_committed: int | None = None

    def close_turn(self, turn: Turn, stats: PoolStats) -> str:
        """The line under a turn that was committed."""
        self.attempts += 1
        assert turn.usage is not None, "a committed turn has its usage"
        line = (
            f"turn {self.attempts}: {describe_context(turn, turn.usage, self.last_committed)}; {describe_pages(stats)}"
        )
        self.last_committed = self.attempts
        if turn.finish_reason is FinishReason.LENGTH:
            return f"{line}; cut at {turn.usage.completion_tokens} tokens"
        return line

    def take_back(self, turn: Turn, stats: PoolStats) -> str:
        """The line under a turn that was rolled back, or of which that is not known."""
        self.attempts += 1
        if turn.is_committed is None:
            return f"turn {self.attempts}: the server did not say how it ended; {describe_pages(stats)}"
        kept = "" if turn.session_len is None else f": the session is at {turn.session_len} tokens, as before"
        return f"turn {self.attempts}: taken back{kept}; {describe_pages(stats)}"


def describe_context(turn: Turn, usage: Usage, last_committed: int | None) -> str:
    """As in `context 121 = 102 slot + 0 tree + 19 computed (18 new ids + the last token of turn 1)`."""
    return (
        f"context {usage.context_tokens} = {usage.tokens_from_slot} slot + {usage.tokens_from_tree} tree "
        f"+ {usage.tokens_computed} computed ({_explain(turn, usage, last_committed)})"
    )


def _explain(turn: Turn, usage: Usage, last_committed: int | None) -> str:
    new = turn.new_tokens or 0
    recomputed = usage.tokens_computed - new
    if recomputed == 0:
        return "all new" if new == usage.context_tokens else f"{new} new ids"
    if recomputed < 0:
        return f"{new} new ids, {-recomputed} of them cached"
    if recomputed == 1 and last_committed is not None:
        return f"{new} new ids + the last token of turn {last_committed}"
    return f"{new} new ids + {recomputed} whose KV had been given away"


def describe_pages(stats: PoolStats) -> str:
    """As in `pages: free 248, session 8, cache 0, running 0 of 256`, and the same of SWA pages and states if any."""
    books = "; ".join(_describe_owners(pool) for pool in stats.pools if pool.kind != "rows")
    return books if stats.balanced else f"{books} - THE BOOKS DO NOT BALANCE"


def _describe_owners(pool: Pool) -> str:
    owners = (
        f"{name_units(pool.kind)}: free {pool.available}, session {pool.session_held}, cache {pool.cached}, "
        f"running {pool.uncached} of {pool.total}"
    )
    return f"{owners} ({pool.draining} until the step in flight ends)" if pool.draining else owners


def format_pools(stats: PoolStats) -> str:
    """A table with the equation of each pool, and a line on what stands behind it."""
    return f"{format_equations(stats.pools)}\n{_describe_rest(stats)}"


def format_equations(pools: Sequence[Pool]) -> str:
    """A table with the equation of each pool."""
    rows = [_COLUMNS, *(_cells(pool) for pool in pools)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    signs = ("  ", " + ", " + ", " + ", " + ", " = ", "")
    lines = [
        "".join(
            cell.ljust(width) + (sign if is_equation else " " * len(sign))
            for cell, width, sign in zip(row, widths, signs, strict=True)
        ).rstrip()
        for row, is_equation in ((row, row is not _COLUMNS) for row in rows)
    ]
    return "\n".join(lines)


def _cells(pool: Pool) -> tuple[str, ...]:
    unit = "rows" if pool.kind == "rows" else f"{pool.kind} ({_describe_unit(pool)})"
    terms = (pool.available, pool.evictable, pool.protected, pool.session_held, pool.uncached, pool.total)
    return (unit, *map(str, terms))


def _describe_unit(pool: Pool) -> str:
    return f"pages of {pool.page_size}" if pool.page_size else name_units(pool.kind)


def _describe_rest(stats: PoolStats) -> str:
    verdict = "balanced" if stats.balanced else "NOT BALANCED"
    quarantined = sum(pool.quarantined for pool in stats.pools)
    line = (
        f"{verdict}; {stats.checks_run} checks in {stats.steps} steps; sessions open {stats.sessions_open} "
        f"(with KV {stats.slots_held}, demoted {stats.slots_demoted}); turns running {stats.turns_running}, "
        f"waiting {stats.turns_waiting}"
    )
    return f"{line}; QUARANTINED {quarantined}" if quarantined else line
