"""Compact lines for what the core tells: the trace of a transcript, with the script's own names in place of numbers."""

from collections.abc import Iterable

from engine.core.commands import AbortReason
from engine.core.errors import Refusal
from engine.core.events import (
    CacheFlushed,
    CommitRequested,
    CoreEvent,
    Draining,
    KvMoved,
    PrefixStored,
    Protected,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    StepAnswered,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
    TurnsForgotten,
    Unprotected,
    Usage,
)
from engine.core.ids import Rid
from engine.core.ownership import MOVES, Owner, OwnerKind, PoolKind
from engine.core.plan import PlanRow, StepPlan

_UNITS = {PoolKind.FULL: "page", PoolKind.SWA: "swa page", PoolKind.MAMBA: "state", PoolKind.ROWS: "row"}


class Trace:
    """Learns the names of turns and sessions from their first event; what it never heard of keeps its number."""

    def __init__(self) -> None:
        self._turns: dict[int, str] = {}
        self._sessions: dict[int, str] = {}

    def lines(self, told: Iterable[CoreEvent | Refusal | StepPlan]) -> list[str]:
        """Without indent. What units stand for is left out: the move that brought them to the cache is told."""
        return [line for line in map(self._line, told) if line]

    def _line(self, told: CoreEvent | Refusal | StepPlan) -> str:
        match told:
            case PrefixStored():
                return ""
            case Refusal(reason=reason, value=value, limit=limit):
                given = "" if value is None else f", value {value}"
                allowed = "" if limit is None else f", limit {limit}"
                return f"refused {reason}{given}{allowed}"
            case StepPlan():
                return f"plan {told.step}: {', '.join(self._row(row) for row in told.rows)}"
            case SessionOpened() | SessionClosed() | SessionForked() | SessionTruncated() | SlotChanged():
                return self._session_event(told)
            case TurnsForgotten(session_id, turn_ids):
                return f"forgotten in {session_id}: {' '.join(turn_ids)}"
            case StepPlanned(step, num_rows, num_tokens):
                return f"planned {step}: {num_rows} rows, {num_tokens} tokens"
            case StepAnswered(step, failure):
                return f"answered {step}" if failure is None else f"failed {step}: {failure}"
            case KvMoved() | Protected() | Unprotected() | Draining():
                return self._ownership(told)
            case CacheFlushed(num_units):
                return f"flushed {num_units} units"
            case _:
                return self._turn_event(told)

    def _session_event(
        self, told: SessionOpened | SessionClosed | SessionForked | SessionTruncated | SlotChanged
    ) -> str:
        match told:
            case SessionOpened(session_id, streaming, _, uid):
                self._sessions[uid] = session_id
                return f"opened {session_id}, {'streaming' if streaming else 'ordinary'}"
            case SessionClosed(session_id, reason, history_len):
                return f"closed {session_id}: {reason}, history {history_len}"
            case SessionForked():
                return f"forked {told.session_id} from {told.source_id}: {_lengths(told.history_len, told.kv_len)}"
            case SessionTruncated():
                return f"truncated {told.session_id}: {_lengths(told.history_len, told.kv_len)}"
            case SlotChanged(session_id, source, target, kv_committed_len):
                return f"slot of {session_id}: {source} → {target}, {kv_committed_len} tokens"

    def _ownership(self, told: KvMoved | Protected | Unprotected | Draining) -> str:
        match told:
            case KvMoved(pool, move, source, target, pages):
                units = f"{_UNITS[pool]} {_ranges(pages)}"
                return f"{MOVES[move].event} {units}: {self._owner(source)} → {self._owner(target)}"
            case Protected(pages, pool):
                return f"protected {_UNITS[pool]} {_ranges(pages)}"
            case Unprotected(pages, pool):
                return f"unprotected {_UNITS[pool]} {_ranges(pages)}"
            case Draining(owner, pages, until, pool):
                return f"draining {_UNITS[pool]} {_ranges(pages)} of {self._owner(owner)} until {until}"

    def _turn_event(
        self, told: TurnAccepted | TurnAdmitted | TokensSampled | TurnRetracted | CommitRequested | TurnEnded
    ) -> str:
        match told:
            case TurnAccepted():
                self._turns[told.rid] = told.turn_id
                lengths = f"{told.context_len} tokens, {told.new_len} new, at most {told.max_tokens} to come"
                return f"accepted {told.turn_id}: {lengths}"
            case TurnAdmitted():
                parts = _parts(told.tokens_from_slot, told.tokens_from_tree, told.tokens_to_compute)
                return f"admitted {self._turn(told.rid)}, attempt {told.attempt}: {parts}"
            case TokensSampled():
                ids = " ".join(str(token_id) for token_id in told.token_ids)
                drafted = f", {len(told.token_ids) - 1} of {told.drafted} drafts right" if told.drafted else ""
                return f"sampled {self._turn(told.rid)}[{told.output_start}]: {ids}{drafted}"
            case TurnRetracted():
                return f"retracted {self._turn(told.rid)}: keeps {told.output_len} ids"
            case CommitRequested():
                return f"finished {self._turn(told.rid)}: {told.reason}, {told.output_len} ids"
            case TurnEnded():
                history = "" if told.history_len is None else f", history {told.history_len}"
                detail = f" ({told.detail})" if told.detail else ""
                is_kept = told.is_committed and isinstance(told.outcome, AbortReason)
                outcome = f"{told.outcome}{', kept' if is_kept else ''}{detail}"
                return f"ended {told.turn_id}: {outcome}, {_usage(told.usage)}{history}"

    def _row(self, row: PlanRow) -> str:
        kind = "sampled id" if row.uses_sampled else f"{row.query_len} ids"
        drafts = f", {row.num_samples - 1} of them drafts" if row.num_samples > 1 else ""
        return f"{self._turn(row.rid)} at {row.start_len} {kind}{drafts if row.num_samples else ', no sample'}"

    def _turn(self, rid: Rid) -> str:
        return self._turns.get(rid, f"rid {rid}")

    def _owner(self, owner: Owner) -> str:
        match owner.kind:
            case OwnerKind.REQUEST:
                return self._turn(Rid(owner.name))
            case OwnerKind.SESSION:
                return self._sessions.get(owner.name, str(owner))
            case _:
                return str(owner)


def _lengths(history_len: int, kv_len: int) -> str:
    return f"history {history_len}, KV of {kv_len}"


def _parts(from_slot: int, from_tree: int, computed: int) -> str:
    return f"{from_slot} slot + {from_tree} tree + {computed} computed"


def _usage(usage: Usage) -> str:
    parts = _parts(usage.tokens_from_slot, usage.tokens_from_tree, usage.tokens_computed)
    return f"{usage.context_len} = {parts}, output {usage.output_len}, retractions {usage.retractions}"


def _ranges(units: tuple[int, ...]) -> str:
    """`1-3 7`: neighbours joined, the order kept."""
    runs: list[list[int]] = []
    for unit in units:
        if runs and unit == runs[-1][-1] + 1:
            runs[-1].append(unit)
        else:
            runs.append([unit])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
