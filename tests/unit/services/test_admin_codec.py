"""What operators are shown: nothing is lost on the way, and every name of the core has one in the protocol."""

import pytest

from engine.core.events import SlotState
from engine.core.faults import Fault
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from engine.core.provenance import MoveRecord, UnitHistory
from engine.core.snapshot import PlanRowState, PlanState, PoolBooks, SessionState, Snapshot, TurnState
from engine.executor.device_faults import ForwardFault
from engine.executor.protocol import Capabilities
from protos.v1 import admin_pb2, faults_pb2, ownership_pb2
from services.admin_codec import (
    FAULTS,
    FINDING_KINDS,
    FORWARD_FAULTS,
    OWNER_KINDS,
    POOL_KINDS,
    decode_fault,
    decode_pool,
    encode_history,
    encode_model,
    encode_pools,
    encode_report,
    encode_snapshot,
)
from services.client.inspection import PlanRow, UnitOwner, decode_snapshot, decode_unit
from services.client.model import decode_check, decode_model
from services.client.pools import decode_pools
from services.faults import PROCESS_FAULTS

LEAK = Finding("holders", "lost", FindingKind.LEAK, PoolKind.FULL, (3, 4))


def test_encode_model_when_decoded_by_the_client_then_all_of_it_is_there() -> None:
    capabilities = Capabilities("m", (PoolKind.FULL,), 16, 129, 65, 2048, 256, 1)
    snapshot = Snapshot(16, (books(PoolKind.FULL, 4), books(PoolKind.ROWS, 4)), (), (), 0, 0, 0)
    model = decode_model(encode_model(capabilities, 512, snapshot, ("chat",)))
    assert (model.name, model.context_len, model.vocab_size, model.page_size) == ("m", 512, 256, 16)
    assert (model.pools, model.features) == ({"full": 10, "rows": 10}, ("chat",))


def test_encode_report_when_something_was_found_then_law_and_message_are_told() -> None:
    report = decode_check(encode_report(Report(CheckLevel.FULL, (LEAK, Finding("census", "sums"))), checks_run=9))
    assert (report.is_clean, report.checks_run) == (False, 9)
    leak, conflict = report.findings
    assert (leak.law, leak.message, leak.kind, leak.pool, leak.units) == ("holders", "lost", "leak", "full", (3, 4))
    assert (conflict.kind, conflict.pool, conflict.units) == ("conflict", "", ())


def books(pool: PoolKind, available: int) -> PoolBooks:
    return PoolBooks(pool, 10, available, 1, 2, 3, 0, draining=1, quarantined=0)


def turn(rid: int, pages: int, in_flight: int) -> TurnState:
    return TurnState(Rid(rid), TurnId("t"), None, "running", 1, 0, 0, pages, in_flight)


def test_encode_pools_when_decoded_by_the_client_then_every_term_is_there() -> None:
    snapshot = Snapshot(
        page_size=16,
        pools=(books(PoolKind.FULL, 4), books(PoolKind.ROWS, 4)),
        turns=(turn(1, pages=2, in_flight=1), turn(2, pages=0, in_flight=0)),
        sessions=(session("a", SlotState.HELD), session("b", SlotState.DEMOTED), session("c", None)),
        steps=7,
        in_flight=1,
        checks_run=8,
    )
    stats = decode_pools(encode_pools(snapshot))
    full, rows = stats.pools
    assert (full.kind, full.page_size, rows.kind, rows.page_size) == ("full", 16, "rows", 0)
    assert (full.total, full.available, full.evictable, full.protected) == (10, 4, 1, 2)
    assert (full.session_held, full.uncached, full.draining, full.quarantined) == (3, 0, 1, 0)
    assert (stats.turns_running, stats.turns_waiting) == (1, 1)
    assert (stats.sessions_open, stats.slots_held, stats.slots_demoted) == (3, 1, 1)
    assert (stats.steps, stats.checks_run, stats.balanced) == (7, 8, True)


def test_encode_pools_when_one_does_not_add_up_then_not_balanced() -> None:
    snapshot = Snapshot(16, (books(PoolKind.FULL, 4), books(PoolKind.ROWS, 5)), (), (), 0, 0, 0)
    assert not encode_pools(snapshot).balanced


def test_pool_kinds_when_in_the_protocol_then_the_client_names_them() -> None:
    for number in ownership_pb2.PoolKind.values():
        response = admin_pb2.PoolStatsResponse(pools=[admin_pb2.Pool(kind=number)])
        assert decode_pools(response).pools[0].kind.startswith("kind ") == (number == 0)


def session(name: str, slot: SlotState | None) -> SessionState:
    return SessionState(SessionId(name), True, 5, 0, slot, 4, 1, swa_pages=2, states=3)


def test_tables_when_compared_with_core_and_protocol_then_each_name_has_its_number() -> None:
    assert set(OWNER_KINDS) == set(OwnerKind)
    assert set(OWNER_KINDS.values()) == set(ownership_pb2.OwnerKind.values()) - {0}
    assert set(POOL_KINDS) == set(PoolKind)
    assert set(POOL_KINDS.values()) == set(ownership_pb2.PoolKind.values()) - {0}
    assert set(FINDING_KINDS) == set(FindingKind)
    assert set(FINDING_KINDS.values()) == set(admin_pb2.FindingKind.values()) - {0}
    assert set(FAULTS) == set(Fault)
    assert set(FORWARD_FAULTS) == set(ForwardFault)
    of_the_process = set(PROCESS_FAULTS) | {faults_pb2.FAULT_KIND_NONE}
    known = [*FAULTS.values(), *FORWARD_FAULTS.values(), *of_the_process]
    assert sorted(known) == sorted(set(faults_pb2.FaultKind.values()) - {0})


def test_encode_pools_when_of_any_kind_then_pages_alone_have_a_size() -> None:
    pools = decode_pools(encode_pools(Snapshot(16, tuple(books(kind, 4) for kind in PoolKind), (), (), 0, 0, 0))).pools
    sizes = {pool.kind: pool.page_size for pool in pools}
    assert sizes == {"full": 16, "swa": 16, "mamba": 0, "rows": 0}


def test_decode_pool_when_known_or_not_then_pool_or_none() -> None:
    assert [decode_pool(number) for number in POOL_KINDS.values()] == list(POOL_KINDS)
    assert decode_pool(ownership_pb2.POOL_KIND_UNSPECIFIED) is None
    assert decode_fault(faults_pb2.FAULT_KIND_UNSPECIFIED) is None
    assert decode_fault(faults_pb2.FAULT_KIND_LEAK) is Fault.LEAK
    assert decode_fault(faults_pb2.FAULT_KIND_FORWARD_NAN) is ForwardFault.NAN


@pytest.mark.parametrize("kind", OwnerKind)
def test_encode_history_when_any_owner_then_the_client_names_it(kind: OwnerKind) -> None:
    history = decode_unit(encode_history(UnitHistory(PoolKind.ROWS, 3, Owner(kind, 7), ())))
    assert (history.pool, history.unit, history.owner, history.changes) == ("rows", 3, UnitOwner(kind.value, 7), ())


def test_encode_history_when_it_has_moves_then_all_of_each_is_told_newest_first() -> None:
    turn_owner = Owner(OwnerKind.REQUEST, 5)
    moves = (
        MoveRecord(9, StepNo(4), "abc", Move.DONATE, turn_owner, CACHE),
        MoveRecord(8, StepNo(3), "", Move.GRANT, FREE, turn_owner),
    )
    history = decode_unit(encode_history(UnitHistory(PoolKind.FULL, 3, CACHE, moves)))
    donated, granted = history.changes
    assert (donated.move, str(donated.source), str(donated.target)) == ("donate", "request 5", "cache")
    assert (donated.step, donated.trace_id, granted.move, granted.trace_id) == (4, "abc", "grant", "")


def test_encode_snapshot_when_decoded_by_the_client_then_pools_turns_sessions_and_plans_are_there() -> None:
    turns = (
        TurnState(
            Rid(1), TurnId("t"), SessionId("a"), "running", 9, 2, 10, pages=3, in_flight=1, swa_pages=6, states=7
        ),
        TurnState(Rid(2), TurnId("u"), None, "waiting", 5, 0, 0, pages=0, in_flight=0),
    )
    snapshot = Snapshot(
        page_size=16,
        pools=(books(PoolKind.FULL, 4),),
        turns=turns,
        sessions=(session("a", SlotState.LENT),),
        steps=7,
        in_flight=1,
        checks_run=8,
        plans=(PlanState(StepNo(7), (PlanRowState(Rid(1), 0, 4, 10, 3, 2),)),),
    )
    state = decode_snapshot(encode_snapshot(snapshot))
    first, second = state.turns
    assert (first.number, first.turn_id, first.session_id, first.phase) == (1, "t", "a", "running")
    assert (first.context_tokens, first.completion_tokens, first.kv_tokens) == (9, 2, 10)
    assert (first.kv_pages, first.steps_in_flight, second.session_id) == (3, 1, None)
    assert (first.swa_pages, first.states, second.swa_pages, second.states) == (6, 7, 0, 0)
    assert state.sessions[0].live_turn_ids == ("t",)
    assert (state.sessions[0].kv_pages, state.sessions[0].swa_pages, state.sessions[0].states) == (1, 2, 3)
    assert (state.pools[0].kind, state.steps) == ("full", 7)
    assert [(plan.step, plan.rows) for plan in state.plans] == [(7, (PlanRow(1, 4, 10, 3, 2),))]
