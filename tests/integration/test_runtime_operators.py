"""The whole server over the shadow executor: what operators and owners of sessions can ask, as the client sees it."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from grpc import aio

from protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    faults_pb2,
    generate_pb2,
    generate_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    types_pb2,
)
from services.client import FinishReason, Lengths, TenureError
from services.client.errors import answer
from services.client.inspection import UnitHistory, decode_unit
from services.server import FAULTS_SERVICE, SERVICES
from tests.kit.planting import plant_fault
from tests.kit.runtime_rig import oracle, wait_until
from tests.kit.server_rig import CONFIG, ServerRig, list_services, running_server

PROMPT = [7, 1, 9, 4, 4, 2, 8, 1, 1]
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = (("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01"),)
WITH_FAULTS = replace(CONFIG, fault_injection=True)


async def test_fork_when_made_then_open_shared_and_on_its_own() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        first = await rig.collect(session.turn(token_ids=PROMPT, max_tokens=4))
        async with await session.fork("f") as fork:
            assert fork.lengths == Lengths(len(PROMPT) + 4, 12)
            there = fork.turn(token_ids=[5], max_tokens=4)
            assert await rig.collect(there) == oracle([*PROMPT, *first, 5], 4)
            assert there.usage is not None
            assert there.usage.tokens_computed == 2
            assert await rig.collect(session.turn(token_ids=[6], max_tokens=4)) == oracle([*PROMPT, *first, 6], 4)
            assert [info.session_id async for info in rig.client.sessions()] == ["f", "s"]
            with pytest.raises(TenureError) as caught:
                await session.fork("f")
            assert (caught.value.reason, caught.value.field) == ("SESSION_EXISTS", "new_session_id")
        cut = await session.fork(at_length=3)
        assert (cut.session_id != "", cut.lengths) == (True, Lengths(3, 0))
        await cut.close()


@pytest.mark.parametrize(
    ("at_turn", "at_length", "reason", "code", "field"),
    [
        ("nobody", None, "PARENT_UNKNOWN", grpc.StatusCode.NOT_FOUND, "at_turn_id"),
        (None, -1, "LENGTH_INVALID", grpc.StatusCode.OUT_OF_RANGE, "at_length"),
        (None, 99, "LENGTH_INVALID", grpc.StatusCode.OUT_OF_RANGE, "at_length"),
        ("", None, "FIELD_INVALID", grpc.StatusCode.INVALID_ARGUMENT, "at_turn_id"),
    ],
)
async def test_fork_when_it_can_not_be_then_named_and_none_was_opened(
    at_turn: str | None, at_length: int | None, reason: str, code: grpc.StatusCode, field: str
) -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        await rig.collect(session.turn(token_ids=PROMPT, max_tokens=1))
        with pytest.raises(TenureError) as caught:
            await session.fork("f", at_turn=at_turn, at_length=at_length)
        assert (caught.value.reason, caught.value.code, caught.value.field) == (reason, code, field)
        assert [info.session_id async for info in rig.client.sessions()] == ["s"]


async def test_truncate_when_rewound_then_goes_on_from_there() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        await rig.collect(session.turn(token_ids=PROMPT, max_tokens=4))
        assert await session.truncate(9) == Lengths(9, 8)
        assert await rig.collect(session.turn(token_ids=[3], max_tokens=4)) == oracle([*PROMPT, 3], 4)
        with pytest.raises(TenureError) as caught:
            await session.truncate(99)
        assert (caught.value.reason, caught.value.field) == ("LENGTH_INVALID", "length")
        assert caught.value.metadata == {"value": "99", "limit": "14"}


async def test_truncate_when_no_length_is_given_then_refused_and_not_emptied() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        await rig.collect(session.turn(token_ids=PROMPT, max_tokens=1))
        async with aio.insecure_channel(rig.target) as channel:
            stub = session_pb2_grpc.SessionStub(channel)
            with pytest.raises(TenureError) as caught:
                await answer(stub.Truncate(session_pb2.TruncateRequest(session_id="s")))
        assert (caught.value.reason, caught.value.field) == ("FIELD_INVALID", "length")
        assert (await rig.client.find_session("s")).session_len == len(PROMPT) + 1


async def test_turn_when_its_mode_is_unknown_then_refused_by_name() -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        stub = generate_pb2_grpc.GenerateStub(channel)
        request = generate_pb2.GenerateRequest(tokens=types_pb2.TokenInput(token_ids=PROMPT))
        request.mode = 77  # type: ignore[assignment]  # a newer client's
        with pytest.raises(aio.AioRpcError) as caught:
            async for _message in stub.Generate(request):
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        told = caught.value.details() or ""
        assert told.startswith("mode: ")
        assert told.endswith("known are TURN_MODE_APPEND, TURN_MODE_REPLACE")


async def test_turn_when_replaced_then_aborted_with_the_reason_and_the_new_one_runs() -> None:
    async with running_server() as rig, rig.client.session("s", streaming=False) as session:
        rig.executor.faults.delay_s = lambda _plan: 0.002
        old = session.turn(token_ids=PROMPT, max_tokens=100)
        reading = asyncio.create_task(rig.collect(old))

        async def has_started() -> bool:
            return old.attempt is not None

        await wait_until(has_started)
        assert await rig.collect(session.turn(token_ids=[3], max_tokens=4, replace=True)) == oracle([3], 4)
        with pytest.raises(TenureError) as caught:
            await reading
        assert (caught.value.reason, caught.value.code) == ("TURN_REPLACED", grpc.StatusCode.ABORTED)
        assert (old.finish_reason, old.is_committed) == (FinishReason.ABORT, False)


async def test_turn_when_kept_on_abort_then_committed_with_what_was_read() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        rig.executor.faults.delay_s = lambda _plan: 0.002
        told: list[int] = []
        turn = session.turn(token_ids=PROMPT, max_tokens=100, keep_on_abort=True)
        async for piece in turn:
            told += piece.token_ids
            if len(told) >= 3:
                break
        await turn.leave()
        assert (turn.finish_reason, turn.is_committed) == (FinishReason.ABORT, True)
        assert turn.session_len is not None
        assert turn.usage is not None
        kept = turn.usage.completion_tokens
        assert 3 <= kept < 100
        assert turn.session_len == len(PROMPT) + kept
        expected = oracle([*PROMPT, *oracle(PROMPT, kept), 5], 2)
        assert await rig.collect(session.turn(token_ids=[5], max_tokens=2)) == expected


async def test_close_when_draining_then_the_turn_ends_by_itself() -> None:
    async with running_server() as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.002
        session = rig.client.session("s")
        await session.open()
        reading = asyncio.create_task(rig.collect(session.turn(token_ids=PROMPT, max_tokens=20)))

        async def is_live() -> bool:
            return bool((await rig.client.find_session("s")).live_turn_ids)

        await wait_until(is_live)
        await rig.client.session("s").close(drain=True)
        assert await reading == oracle(PROMPT, 20)
        assert [info async for info in rig.client.sessions()] == []


async def test_snapshot_when_a_turn_runs_then_all_parts_of_it_are_told() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        rig.executor.hold()
        reading = asyncio.create_task(rig.collect(session.turn(token_ids=PROMPT, turn_id="t", max_tokens=2)))

        async def is_planned() -> bool:
            return bool((await rig.client.snapshot()).plans)

        await wait_until(is_planned)
        state = await rig.client.snapshot()
        (turn,), (info,) = state.turns, state.sessions
        assert (turn.turn_id, turn.session_id, turn.phase, turn.context_tokens) == ("t", "s", "running", len(PROMPT))
        assert (info.session_id, info.live_turn_ids) == ("s", ("t",))
        assert {pool.kind for pool in state.pools} == {"full", "rows"}
        assert next((row.number, row.start) for plan in state.plans for row in plan.rows) == (turn.number, 0)
        rig.executor.let_go()
        await reading


async def test_explain_when_a_turn_had_the_page_then_moves_steps_and_trace() -> None:
    async with running_server() as rig:
        await generate_traced(rig)
        histories = [await rig.client.explain(unit) for unit in range(1, 64)]
        traced = [change for history in histories for change in history.changes if change.trace_id == TRACE_ID]
        assert {change.move for change in traced} >= {"grant"}
        assert all(change.step > 0 for change in traced)
        assert any(not history.changes for history in histories), "most pages nobody ever had"
        row = await rig.client.explain(1, "rows")
        assert (row.pool, row.unit, str(row.owner)) == ("rows", 1, "free")


@pytest.mark.parametrize(
    ("pool", "unit", "field"),
    [(1, 0, "unit"), (1, -1, "unit"), (1, 64, "unit"), (2, 8, "unit"), (0, 1, "pool"), (9, 1, "pool")],
)
async def test_explain_when_there_is_no_such_unit_then_refused_by_name(pool: int, unit: int, field: str) -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        request = admin_pb2.ExplainRequest(unit=unit)
        request.pool = pool  # type: ignore[assignment]  # what an untyped client may send
        with pytest.raises(TenureError) as caught:
            await answer(admin_pb2_grpc.AdminStub(channel).Explain(request))
        assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_faults_when_not_asked_for_then_not_there_and_never_listed() -> None:
    async with running_server() as rig:
        assert FAULTS_SERVICE not in await list_services(rig.target)
        with pytest.raises(TenureError) as caught:
            await plant(rig, faults_pb2.FAULT_KIND_LEAK)
        assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED


async def test_faults_when_asked_for_then_listed_and_each_kind_is_checked() -> None:
    async with running_server(WITH_FAULTS) as rig:
        assert set(await list_services(rig.target)) >= {*SERVICES, FAULTS_SERVICE}
        with pytest.raises(TenureError) as caught:
            await plant(rig, faults_pb2.FAULT_KIND_UNSPECIFIED)
        assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "kind")
        with pytest.raises(TenureError) as caught:
            await plant(rig, faults_pb2.FAULT_KIND_DOUBLE_OWNER)
        assert (caught.value.reason, caught.value.field) == ("FAULT_IMPOSSIBLE", "kind")
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def plant(rig: ServerRig, kind: faults_pb2.FaultKind.ValueType) -> UnitHistory:
    return decode_unit((await plant_fault(rig.target, faults_pb2.PlantRequest(kind=kind))).history)


async def generate_traced(rig: ServerRig) -> None:
    """A turn whose caller has a trace."""
    async with aio.insecure_channel(rig.target) as channel:
        request = generate_pb2.GenerateRequest(tokens=types_pb2.TokenInput(token_ids=PROMPT))
        request.sampling.max_tokens = 4
        async for _message in generate_pb2_grpc.GenerateStub(channel).Generate(request, metadata=TRACEPARENT):
            pass


@pytest.mark.parametrize(("pool", "limit", "told"), [("full", 63, "pages are 1 to 63"), ("rows", 7, "rows are 1 to 7")])
@pytest.mark.parametrize("beyond", [True, False])
async def test_explain_when_there_is_no_such_unit_then_which_there_are(
    pool: str, limit: int, told: str, beyond: bool
) -> None:
    async with running_server() as rig:
        assert (await rig.client.explain(limit, pool)).unit == limit
        unit = limit + 1 if beyond else 0
        with pytest.raises(TenureError, match=told) as caught:
            await rig.client.explain(unit, pool)
        assert (caught.value.reason, caught.value.field) == ("FIELD_INVALID", "unit")
        assert caught.value.metadata == {"value": str(unit), "limit": str(limit)}


async def runs(rig: ServerRig) -> bool:
    stats = await rig.client.pools()
    return stats.turns_running > 0


async def test_session_when_it_drains_then_a_later_turn_is_told_that_it_closes() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        rig.executor.hold()
        turn = session.turn(token_ids=PROMPT, max_tokens=4)
        reading = asyncio.create_task(rig.collect(turn))
        await wait_until(lambda: runs(rig))
        closing = asyncio.create_task(session.close(drain=True))
        await asyncio.sleep(0.05)  # calls of one connection may overtake each other
        for ask in (rig.client.session("s").turn(text="x"), rig.client.session("s").turn(token_ids=[1])):
            with pytest.raises(TenureError) as caught:
                await rig.collect(ask)
            assert (caught.value.reason, caught.value.field) == ("SESSION_CLOSING", "session_id")
            assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
        rig.executor.let_go()
        assert len(await reading) == 4
        await closing
