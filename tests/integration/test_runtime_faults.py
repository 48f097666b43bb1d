"""Planted faults in a running engine: a leak is contained, a page with two owners ends it with a dump."""

import logging

import pytest

from engine.core.commands import FinishReason
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import KvMoved
from engine.core.faults import Fault
from engine.core.ids import SessionId
from engine.core.ownership import Move
from engine.runtime.handle import EngineFailed
from engine.runtime.lifecycle import EngineState
from tests.kit.runtime_rig import end_of, ids_of, oracle, read_all, running, wait_until

PROMPT = list(range(1, 21))


@pytest.mark.parametrize("in_flight_max", [1, 2])
async def test_leak_when_planted_while_a_turn_runs_then_the_page_is_quarantined_and_the_turn_is_exact(
    in_flight_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s")
        await read_all(await rig.submit("first", PROMPT, session="s", max_tokens=60))
        await rig.engine.close_session(SessionId("s"))
        total = (await rig.full_pool()).total
        rig.executor.hold()
        stream = await rig.submit("second", PROMPT, max_tokens=30)
        planted = await rig.engine.plant(Fault.LEAK)
        rig.executor.let_go()
        events = await read_all(stream)
        assert end_of(events).outcome is FinishReason.LENGTH
        assert ids_of(events) == oracle(PROMPT, 30)
        books = await rig.full_pool()
        assert (books.total, books.quarantined) == (total - 1, 1)
        assert (await rig.engine.check()).is_clean
        moved = [each.event for each in rig.sink.events if isinstance(each.event, KvMoved)]
        assert [event.pages for event in moved if event.move is Move.QUARANTINE] == [(planted.unit,)]
    assert caplog.text.count("event=kv_leak pool=full") == 1


async def test_leak_when_planted_while_idle_then_it_is_found_and_told_without_any_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as rig:
        await rig.open("s")
        await read_all(await rig.submit("first", PROMPT, session="s"))
        await rig.engine.close_session(SessionId("s"))
        await rig.engine.plant(Fault.LEAK)

        async def is_told() -> bool:
            moved = [each.event for each in rig.sink.events if isinstance(each.event, KvMoved)]
            return moved[-1].move is Move.QUARANTINE

        await wait_until(is_told)
        assert rig.engine.state is EngineState.SERVING
    assert "event=kv_leak pool=full" in caplog.text


async def test_double_owner_when_planted_then_every_stream_ends_failed_after_a_dump_and_the_engine_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as rig:
        await rig.open("s")
        await read_all(await rig.submit("first", PROMPT, session="s"))
        rig.executor.hold()
        stream = await rig.submit("second", [5, 6, 7], max_tokens=30)
        planted = await rig.engine.plant(Fault.DOUBLE_OWNER)
        rig.executor.let_go()
        with pytest.raises(EngineFailed, match="BooksDisagree"):
            await read_all(stream)
        with pytest.raises(EngineFailed):
            await rig.engine.wait_ended()
        assert rig.engine.state is EngineState.FAILED
        with pytest.raises(EngineFailed):
            await rig.engine.stop()
    (dump,) = (it.getMessage() for it in caplog.records if it.getMessage().startswith("event=engine_dump"))
    lines = dump.splitlines()
    assert lines[1].startswith("books: DO NOT BALANCE")
    assert any(line.startswith(f"unit: full {planted.unit} belongs to {planted.owner}") for line in lines)
    assert all(record.levelno == logging.CRITICAL for record in caplog.records if "dump" in record.getMessage())


@pytest.mark.parametrize("fault", Fault)
async def test_fault_when_no_page_was_ever_used_then_it_is_refused_and_the_engine_serves_on(fault: Fault) -> None:
    async with running() as rig:
        with pytest.raises(Refusal) as refused:
            await rig.engine.plant(fault)
        assert refused.value.reason is RefusalReason.FAULT_IMPOSSIBLE
        assert end_of(await read_all(await rig.submit("t", PROMPT))).outcome is FinishReason.LENGTH
