"""Where each unit was: the last moves of every page and row, kept at the price of one record a move.

    latest[pool][unit] -> record of the unit's last move: what moved, when, from whom to whom, on whose trace
    trails[number]     -> the units of that move and, beside each, the record that it had before

Records and trails hold plain numbers and strings only, so the garbage collector soon leaves them alone. Trails of old
moves are dropped; a unit's last record never is. Memory: O(units + TRAIL_BUDGET).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.core.ids import StepNo
from engine.core.ownership import MOVES, Move, MoveRule, Owner, OwnerKind, PoolKind

HISTORY_MAX = 8
"""Most moves of one unit that `explain` tells."""

TRAIL_BUDGET = 2**16
"""Units that trails may name together, at least; four times the pools where that is more. About 20 bytes each."""
_BUDGET_PER_UNIT = 4
_RECORD_COST = 16
"""What a move costs beside its units, in units."""

_Record = tuple[int, StepNo, str, str, int, int, int]
"""Number, step, trace id, the move's event, which of its rule's sources, name of the source, name of the target."""

HandOvers = tuple[_Record, ...]
"""The last moves of a claim as a whole, newest first, at most HISTORY_MAX: they are moves of all of its units."""

_MOVES_BY_EVENT = {rule.event: move for move, rule in MOVES.items()}


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One change of owner of one unit. `number` counts the ledger's moves from 1; `step` is the newest plan then."""

    number: int
    step: StepNo
    trace_id: str
    """Empty when neither the source nor the target was followed."""
    move: Move
    source: Owner
    target: Owner

    def __str__(self) -> str:
        trace = f" trace_id={self.trace_id}" if self.trace_id else ""
        return f"{self.move} {self.source}→{self.target} step={self.step}{trace}"


@dataclass(frozen=True, slots=True)
class UnitHistory:
    """A page or a row: who has it now, and how it got there. `moves`: newest first, at most HISTORY_MAX."""

    pool: PoolKind
    unit: int
    owner: Owner
    moves: tuple[MoveRecord, ...]

    def __str__(self) -> str:
        told = "; ".join(map(str, self.moves)) or "never moved"
        return f"{self.pool} {self.unit} belongs to {self.owner}: {told}"


class Provenance:
    """Written by the ledger, once a move. Every move is numbered, from 1 without gaps."""

    def __init__(self, sizes: Mapping[PoolKind, int]) -> None:
        """`sizes`: units of each pool, padding included."""
        self._latest: dict[PoolKind, list[_Record | None]] = {pool: [None] * size for pool, size in sizes.items()}
        self._trails: dict[int, tuple[tuple[int, ...], tuple[_Record | None, ...], HandOvers]] = {}
        self._budget = max(TRAIL_BUDGET, _BUDGET_PER_UNIT * sum(sizes.values()))
        self._cost = 0
        self._oldest = 1
        self._traces: dict[OwnerKind, dict[int, str]] = {kind: {} for kind in OwnerKind}
        self.num_moves = 0
        self.step = StepNo(0)

    def follow(self, owner: Owner, trace_id: str) -> None:
        """From now on moves to or from `owner` carry its trace id. An empty one is not kept."""
        if trace_id:
            self._traces[owner.kind][owner.name] = trace_id

    def unfollow(self, owner: Owner) -> None:
        """Forgets the trace id of an owner that will not move anything any more. Idempotent."""
        self._traces[owner.kind].pop(owner.name, None)

    def trace_of(self, source: Owner, target: Owner) -> str:
        """A request's trace id if one of the two is a followed request, else a session's, else none."""
        named = (target, source) if source.kind is not OwnerKind.REQUEST else (source, target)
        first, second = (self._traces[owner.kind].get(owner.name, "") for owner in named)
        return first or second

    def hand_over(self, rule: MoveRule, source: Owner, target: Owner, trace_id: str, before: HandOvers) -> HandOvers:
        """The last moves of a claim that goes as a whole, this one included. O(1)."""
        return (self._number(rule, source, target, trace_id), *before[: HISTORY_MAX - 1])

    def _number(self, rule: MoveRule, source: Owner, target: Owner, trace_id: str) -> _Record:
        self.num_moves = number = self.num_moves + 1
        from_kind = rule.sources.index(source.kind)
        return (number, self.step, trace_id, rule.event, from_kind, source.name, target.name)

    def record(
        self,
        pool: PoolKind,
        rule: MoveRule,
        source: Owner,
        target: Owner,
        units: tuple[int, ...],
        trace_id: str,
        handed_over: HandOvers = (),
    ) -> None:
        """Notes a move of `units`, which are in range, out of a claim with these moves. O(units)."""
        record = self._number(rule, source, target, trace_id)
        latest = self._latest[pool]
        self._trails[record[0]] = (units, tuple(map(latest.__getitem__, units)), handed_over)
        for unit in units:
            latest[unit] = record
        self._cost += len(units) + _RECORD_COST
        while self._cost > self._budget:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._oldest not in self._trails:  # a claim that went as a whole left none
            self._oldest += 1
        units, _, _ = self._trails.pop(self._oldest)
        self._cost -= len(units) + _RECORD_COST

    @property
    def num_trails(self) -> int:
        """Moves of which it is still known what their units did before."""
        return len(self._trails)

    def has_moved(self, pool: PoolKind, unit: int) -> bool:
        return self._latest[pool][unit] is not None

    def moves(self, pool: PoolKind, unit: int, handed_over: HandOvers = ()) -> tuple[MoveRecord, ...]:
        """The unit's last moves, newest first, at most HISTORY_MAX: its last one always."""
        told = zip(self._back(pool, unit, handed_over), range(HISTORY_MAX), strict=False)
        return tuple(record for record, _ in told)

    def _back(self, pool: PoolKind, unit: int, handed_over: HandOvers) -> Iterator[MoveRecord]:
        record = self._latest[pool][unit]
        while True:
            since = record[0] if record is not None else 0
            yield from (_spell_out(whole) for whole in handed_over if whole[0] > since)
            if record is None:
                return
            yield _spell_out(record)
            units, before, handed_over = self._trails.get(record[0], ((), (), ()))
            record = before[units.index(unit)] if units else None


def _spell_out(record: _Record) -> MoveRecord:
    number, step, trace_id, event, from_kind, source, target = record
    move = _MOVES_BY_EVENT[event]
    rule = MOVES[move]
    return MoveRecord(number, step, trace_id, move, Owner(rule.sources[from_kind], source), Owner(rule.target, target))
