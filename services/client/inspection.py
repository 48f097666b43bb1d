"""What an operator looks into, as the client sees it: a unit's owners, and all that runs at one instant."""

from dataclasses import dataclass

from protos.v1 import admin_pb2, ownership_pb2
from services.client.pools import KINDS, Pool, decode_pool
from services.client.sessions import SessionInfo, decode_session

_OWNER_KINDS = {
    ownership_pb2.OWNER_KIND_FREE: "free",
    ownership_pb2.OWNER_KIND_REQUEST: "request",
    ownership_pb2.OWNER_KIND_SESSION: "session",
    ownership_pb2.OWNER_KIND_CACHE: "cache",
    ownership_pb2.OWNER_KIND_QUARANTINED: "quarantined",
}


@dataclass(frozen=True, slots=True)
class UnitOwner:
    """free, request, session, cache or quarantined; requests and sessions have numbers."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number}" if self.kind in ("request", "session") else self.kind


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """A unit went from `source` to `target`; `step` is the newest step that was planned by then."""

    move: str
    source: UnitOwner
    target: UnitOwner
    step: int
    trace_id: str
    """Empty when neither side had one."""


@dataclass(frozen=True, slots=True)
class UnitHistory:
    """Who owns a page, a state or a row, and how it came to its last owners, newest first."""

    pool: str
    unit: int
    owner: UnitOwner
    changes: tuple[OwnershipChange, ...]


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """A turn at one instant."""

    number: int
    """The server's, as in UnitOwner."""
    turn_id: str
    session_id: str | None
    phase: str
    context_tokens: int
    completion_tokens: int
    kv_tokens: int
    kv_pages: int
    steps_in_flight: int
    swa_pages: int = 0
    """As kv_pages, of the other pools."""
    states: int = 0


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A turn's share of a step: it computes tokens [start, start + tokens), and chooses after the last `samples`."""

    number: int
    row: int
    start: int
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A step in flight."""

    step: int
    rows: tuple[PlanRow, ...]


@dataclass(frozen=True, slots=True)
class ServerState:
    """All that runs, at one instant."""

    steps: int
    pools: tuple[Pool, ...]
    turns: tuple[TurnInfo, ...]
    sessions: tuple[SessionInfo, ...]
    plans: tuple[Plan, ...]
    """In flight, oldest first."""


def decode_unit(history: admin_pb2.UnitHistory) -> UnitHistory:
    return UnitHistory(
        pool=KINDS.get(history.pool, f"kind {history.pool}"),
        unit=history.unit,
        owner=decode_owner(history.owner),
        changes=tuple(
            OwnershipChange(
                move=change.move,
                source=decode_owner(change.source),
                target=decode_owner(change.target),
                step=change.step,
                trace_id=change.trace_id,
            )
            for change in history.changes
        ),
    )


def decode_owner(owner: ownership_pb2.UnitOwner) -> UnitOwner:
    return UnitOwner(_OWNER_KINDS.get(owner.kind, f"kind {owner.kind}"), owner.number)


def decode_snapshot(response: admin_pb2.SnapshotResponse) -> ServerState:
    return ServerState(
        steps=response.steps,
        pools=tuple(decode_pool(pool) for pool in response.pools),
        turns=tuple(_decode_turn(turn) for turn in response.turns),
        sessions=tuple(decode_session(session) for session in response.sessions),
        plans=tuple(Plan(plan.step, tuple(map(_decode_row, plan.rows))) for plan in response.plans),
    )


def _decode_turn(turn: admin_pb2.TurnInfo) -> TurnInfo:
    return TurnInfo(
        number=turn.number,
        turn_id=turn.turn_id,
        session_id=turn.session_id if turn.HasField("session_id") else None,
        phase=turn.phase,
        context_tokens=turn.context_tokens,
        completion_tokens=turn.completion_tokens,
        kv_tokens=turn.kv_tokens,
        kv_pages=turn.kv_pages,
        steps_in_flight=turn.steps_in_flight,
        swa_pages=turn.swa_pages,
        states=turn.states,
    )


def _decode_row(row: admin_pb2.PlanRowInfo) -> PlanRow:
    return PlanRow(number=row.number, row=row.row, start=row.start, tokens=row.tokens, samples=row.samples)
