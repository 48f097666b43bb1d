"""What an operator is shown → protobuf messages. Translates; judges nothing."""

from collections.abc import Sequence

from engine.core.events import SlotState
from engine.core.faults import Fault
from engine.core.findings import Finding, FindingKind, Report
from engine.core.ownership import PAGED_KINDS, Owner, OwnerKind, PoolKind
from engine.core.provenance import MoveRecord, UnitHistory
from engine.core.snapshot import PlanState, PoolBooks, Snapshot, TurnState
from engine.executor.device_faults import ForwardFault
from engine.executor.protocol import Capabilities
from engine.runtime.incidents import Incident
from protos.v1 import admin_pb2, faults_pb2, incidents_pb2, ownership_pb2
from services.codec import encode_sessions

POOL_KINDS: dict[PoolKind, ownership_pb2.PoolKind.ValueType] = {
    PoolKind.FULL: ownership_pb2.POOL_KIND_FULL,
    PoolKind.ROWS: ownership_pb2.POOL_KIND_ROWS,
    PoolKind.SWA: ownership_pb2.POOL_KIND_SWA,
    PoolKind.MAMBA: ownership_pb2.POOL_KIND_MAMBA,
}

OWNER_KINDS: dict[OwnerKind, ownership_pb2.OwnerKind.ValueType] = {
    OwnerKind.FREE: ownership_pb2.OWNER_KIND_FREE,
    OwnerKind.REQUEST: ownership_pb2.OWNER_KIND_REQUEST,
    OwnerKind.SESSION: ownership_pb2.OWNER_KIND_SESSION,
    OwnerKind.CACHE: ownership_pb2.OWNER_KIND_CACHE,
    OwnerKind.QUARANTINED: ownership_pb2.OWNER_KIND_QUARANTINED,
}

FINDING_KINDS: dict[FindingKind, admin_pb2.FindingKind.ValueType] = {
    FindingKind.LEAK: admin_pb2.FINDING_KIND_LEAK,
    FindingKind.CONFLICT: admin_pb2.FINDING_KIND_CONFLICT,
}

FAULTS: dict[Fault, faults_pb2.FaultKind.ValueType] = {
    Fault.LEAK: faults_pb2.FAULT_KIND_LEAK,
    Fault.DOUBLE_OWNER: faults_pb2.FAULT_KIND_DOUBLE_OWNER,
}
"""Of the books."""

FORWARD_FAULTS: dict[ForwardFault, faults_pb2.FaultKind.ValueType] = {
    ForwardFault.SLEEP: faults_pb2.FAULT_KIND_FORWARD_SLEEPS,
    ForwardFault.RAISE: faults_pb2.FAULT_KIND_FORWARD_RAISES,
    ForwardFault.NAN: faults_pb2.FAULT_KIND_FORWARD_NAN,
    ForwardFault.BAD_TOKEN: faults_pb2.FAULT_KIND_FORWARD_BAD_TOKEN,
    ForwardFault.DIE: faults_pb2.FAULT_KIND_EXECUTOR_DIES,
}

_HOLDING_SLOTS = (SlotState.HELD, SlotState.LENT, SlotState.COMMITTING, SlotState.RETURNING)


def decode_pool(number: ownership_pb2.PoolKind.ValueType) -> PoolKind | None:
    """None for what no pool has."""
    return next((pool for pool, known in POOL_KINDS.items() if known == number), None)


def decode_fault(number: faults_pb2.FaultKind.ValueType) -> Fault | ForwardFault | None:
    """None for what neither the books nor the forwards know."""
    of_books = next((fault for fault, known in FAULTS.items() if known == number), None)
    return of_books or next((fault for fault, known in FORWARD_FAULTS.items() if known == number), None)


def encode_model(
    capabilities: Capabilities, context_len: int, snapshot: Snapshot, features: Sequence[str]
) -> admin_pb2.GetModelResponse:
    return admin_pb2.GetModelResponse(
        name=capabilities.name,
        context_len=context_len,
        vocab_size=capabilities.vocab_size,
        page_size=snapshot.page_size,
        pools=[admin_pb2.PoolSize(kind=POOL_KINDS[books.pool], total=books.total) for books in _shown(snapshot.pools)],
        features=features,
    )


def encode_report(report: Report, checks_run: int) -> admin_pb2.CheckResponse:
    return admin_pb2.CheckResponse(findings=map(_encode_finding, report.findings), checks_run=checks_run)


def _encode_finding(finding: Finding) -> admin_pb2.CheckFinding:
    return admin_pb2.CheckFinding(
        law=finding.law,
        message=finding.message,
        kind=FINDING_KINDS[finding.kind],
        pool=ownership_pb2.POOL_KIND_UNSPECIFIED if finding.pool is None else POOL_KINDS[finding.pool],
        units=finding.units,
    )


def encode_pools(snapshot: Snapshot, kv_sequence: int = 0, kv_log_id: str = "") -> admin_pb2.PoolStatsResponse:
    """`kv_sequence`: the event of log `kv_log_id` up to which the snapshot is told."""
    running = sum(turn.pages > 0 or turn.in_flight > 0 for turn in snapshot.turns)
    slots = [session.slot for session in snapshot.sessions]
    return admin_pb2.PoolStatsResponse(
        pools=[encode_pool(books, snapshot.page_size) for books in _shown(snapshot.pools)],
        sessions_open=len(snapshot.sessions),
        turns_running=running,
        turns_waiting=len(snapshot.turns) - running,
        slots_held=sum(slot in _HOLDING_SLOTS for slot in slots),
        slots_demoted=sum(slot is SlotState.DEMOTED for slot in slots),
        steps=snapshot.steps,
        checks_run=snapshot.checks_run,
        balanced=all(books.is_balanced for books in snapshot.pools),
        kv_sequence=kv_sequence,
        kv_log_id=kv_log_id,
    )


def _shown(pools: Sequence[PoolBooks]) -> list[PoolBooks]:
    unknown = [books.pool for books in pools if books.pool not in POOL_KINDS]
    assert not unknown, f"pools without a name in the protocol: {unknown}"
    return list(pools)


def encode_pool(books: PoolBooks, page_size: int) -> admin_pb2.Pool:
    return admin_pb2.Pool(
        kind=POOL_KINDS[books.pool],
        total=books.total,
        available=books.available,
        evictable=books.evictable,
        protected=books.protected,
        session_held=books.session_held,
        uncached=books.uncached,
        draining=books.draining,
        quarantined=books.quarantined,
        page_size=page_size if books.pool in PAGED_KINDS else 0,
    )


def encode_snapshot(snapshot: Snapshot) -> admin_pb2.SnapshotResponse:
    return admin_pb2.SnapshotResponse(
        pools=[encode_pool(books, snapshot.page_size) for books in _shown(snapshot.pools)],
        turns=map(_encode_turn, snapshot.turns),
        sessions=encode_sessions(snapshot.sessions, snapshot.turns),
        plans=map(_encode_plan, snapshot.plans),
        steps=snapshot.steps,
    )


def _encode_turn(turn: TurnState) -> admin_pb2.TurnInfo:
    return admin_pb2.TurnInfo(
        number=turn.rid,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        phase=turn.phase,
        context_tokens=turn.context_len,
        completion_tokens=turn.output_len,
        kv_tokens=turn.kv_committed_len,
        kv_pages=turn.pages,
        steps_in_flight=turn.in_flight,
        swa_pages=turn.swa_pages,
        states=turn.states,
    )


def _encode_plan(plan: PlanState) -> admin_pb2.PlanInfo:
    return admin_pb2.PlanInfo(
        step=plan.step,
        rows=[
            admin_pb2.PlanRowInfo(
                number=row.rid, row=row.req_pool_idx, start=row.start_len, tokens=row.query_len, samples=row.num_samples
            )
            for row in plan.rows
        ],
    )


def encode_history(history: UnitHistory) -> admin_pb2.UnitHistory:
    return admin_pb2.UnitHistory(
        pool=POOL_KINDS[history.pool],
        unit=history.unit,
        owner=_encode_owner(history.owner),
        changes=map(_encode_change, history.moves),
    )


def _encode_owner(owner: Owner) -> ownership_pb2.UnitOwner:
    return ownership_pb2.UnitOwner(kind=OWNER_KINDS[owner.kind], number=owner.name)


def _encode_change(record: MoveRecord) -> admin_pb2.OwnershipChange:
    return admin_pb2.OwnershipChange(
        move=record.move,
        source=_encode_owner(record.source),
        target=_encode_owner(record.target),
        step=record.step,
        trace_id=record.trace_id,
    )


def encode_incident(incident: Incident) -> incidents_pb2.IncidentInfo:
    return incidents_pb2.IncidentInfo(
        incident_id=incident.incident_id,
        time_s=incident.time_s,
        kind=incident.kind.value,
        message=incident.message,
        over_s=incident.over_s,
        has_dump=incident.dump is not None,
    )
