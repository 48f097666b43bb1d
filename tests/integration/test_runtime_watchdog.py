"""A whole engine in trouble: what turns are told when a forward does not end, and what is left when it comes back."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.core import Core
from engine.core.events import Numbered, TurnEnded
from engine.core.faults import Fault
from engine.core.ids import SessionId
from engine.runtime.clock import WallClock
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import EngineFailed
from engine.runtime.incidents import IncidentKind, Incidents
from engine.runtime.lifecycle import EngineState
from engine.runtime.step_times import StepTimes
from engine.runtime.vitals import Trip, Trouble, WatchdogConfig
from engine.runtime.watchdog import Watchdog, WatchdogHooks
from tests.kit.runtime_rig import (
    QUICK,
    ByteVocabulary,
    RuntimeRig,
    core_config,
    end_of,
    ids_of,
    oracle,
    read_all,
    running,
    wait_until,
)
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities

PROMPT = list(range(1, 21))
LIMITS = WatchdogConfig(prefill_s=0.15, decode_s=0.15, idle_s=5.0, hard_factor=4, exit_s=0.05, tick_s=0.01)


@asynccontextmanager
async def watched(
    limits: WatchdogConfig = LIMITS, in_flight_max: int = 1
) -> AsyncIterator[tuple[RuntimeRig, list[Trouble | None]]]:
    """A rig under a watchdog, and what the watchdog told."""
    told: list[Trouble | None] = []
    async with running(in_flight_max=in_flight_max) as rig:
        loop = asyncio.get_running_loop()
        engine = rig.engine

        def give_up(trip: Trip) -> None:
            loop.call_soon_threadsafe(engine.give_up, trip)

        hooks = WatchdogHooks(
            dump=engine.dump_stuck,
            on_change=told.append,
            on_lost=give_up,
            leave=lambda _trouble: None,
        )
        watchdog = Watchdog(engine.vitals, engine.incident_log, limits, hooks)
        watchdog.start()
        try:
            yield rig, told
        finally:
            watchdog.stop()


async def until(holds: Callable[[], bool]) -> None:
    async def check() -> bool:
        return holds()

    await wait_until(check)


@pytest.mark.parametrize("in_flight_max", [1, 2])
async def test_forward_when_it_does_not_end_then_its_turns_end_and_its_session_goes_on_once_it_is_back(
    in_flight_max: int,
) -> None:
    limits = replace(LIMITS, hard_factor=1000)
    async with watched(limits, in_flight_max) as (rig, told):
        await rig.open("s")
        first = await rig.run("first", PROMPT, "s")
        rig.executor.hold()
        stream = await rig.submit("second", [7, 8, 9], session="s", max_tokens=20)
        end = end_of(await read_all(stream))
        (incident,) = await rig.engine.incidents()
        assert (end.outcome, end.incident_id) == (AbortReason.FORWARD_FAILED, incident.incident_id)
        assert incident.kind is IncidentKind.FORWARD_STUCK
        assert "has not ended within 0.15 s" in end.detail
        dump = await rig.engine.dump(incident.incident_id)
        assert dump is not None
        assert dump.startswith("books: balance")
        assert "phase=running" in dump, "made before the turns were ended"
        waiting = asyncio.create_task(rig.run("third", [7, 8, 9], "s"))
        await asyncio.sleep(0)
        rig.executor.let_go()
        third = await waiting
        history = [*PROMPT, *first.ids, 7, 8, 9]
        assert third.ids == oracle(history, 8)
        assert third.end.usage.tokens_from_slot > 0, "the session kept its KV"
        await until(lambda: told[-1] is None)
        assert (await rig.engine.incidents())[0].over_s is not None
        assert (await rig.engine.check()).is_clean


async def test_forward_when_it_fails_after_its_turns_were_ended_then_no_second_incident() -> None:
    async with watched(replace(LIMITS, hard_factor=1000)) as (rig, _told):
        rig.executor.hold()
        stream = await rig.submit("t", PROMPT)
        assert end_of(await read_all(stream)).outcome is AbortReason.FORWARD_FAILED
        rig.executor.faults.failing_steps = {rig.executor.submitted[-1].step: "out of memory"}
        rig.executor.let_go()
        await until(lambda: not rig.executor.num_in_flight)
        assert end_of(await read_all(await rig.submit("next", PROMPT))).outcome is FinishReason.LENGTH
        assert [each.kind for each in await rig.engine.incidents()] == [IncidentKind.FORWARD_STUCK]


async def test_forward_when_it_never_ends_then_every_stream_hears_of_one_incident_before_the_process_goes() -> None:
    async with watched() as (rig, _told):
        rig.executor.hold()
        stuck = await rig.submit("stuck", PROMPT)
        assert end_of(await read_all(stuck)).outcome is AbortReason.FORWARD_FAILED
        waiting = await rig.submit("waiting", PROMPT)
        with pytest.raises(EngineFailed, match="the engine is lost") as failed:
            await read_all(waiting)
        (incident,) = await rig.engine.incidents()
        assert failed.value.incident_id == incident.incident_id
        with pytest.raises(EngineFailed):
            await rig.engine.wait_ended()
        assert rig.engine.state is EngineState.FAILED
        rig.executor.let_go()
        with pytest.raises(EngineFailed):
            await rig.engine.stop()


async def test_turn_when_leaks_leave_no_room_for_it_then_it_ends_with_their_incident_and_not_with_an_older_one() -> (
    None
):
    async with running(pool_pages=24, context_len=88, prefix_cache=False) as rig:  # what ends leaves free pages
        rig.executor.faults.failing_steps = {10: "out of memory"}
        failed = end_of(await read_all(await rig.submit("a", range(1, 80))))
        (step,) = await rig.engine.incidents()
        assert (failed.incident_id, step.message) == (step.incident_id, "step 10: out of memory")
        rig.executor.hold()
        big = await rig.submit("big", range(100, 180))
        for _ in range(5):
            await rig.engine.plant(Fault.LEAK)
        rig.executor.let_go()
        end = end_of(await read_all(big))
        assert end.outcome is AbortReason.FORWARD_FAILED
        assert "shrank to" in end.detail
        leaks = [each for each in await rig.engine.incidents() if each.kind is IncidentKind.LEAK]
        assert end.incident_id in [leak.incident_id for leak in leaks]


async def test_sink_when_it_raises_then_it_is_told_nothing_more_and_no_turn_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenSink:
        def __init__(self) -> None:
            self.asked = 0

        def publish(self, events: tuple[Numbered, ...], _now: float) -> None:
            self.asked += 1
            if any(isinstance(each.event, TurnEnded) for each in events):
                raise KeyError("a sink's own fault")

    sink = BrokenSink()
    async with running(sinks=[sink]) as rig:
        for name in ("a", "b"):
            events = await read_all(await rig.submit(name, PROMPT))
            assert ids_of(events) == oracle(PROMPT, 8)
        asked = sink.asked
        await read_all(await rig.submit("c", PROMPT))
        assert sink.asked == asked
        assert len(rig.sink.endings()) == 3, "the other sinks hear everything"
    assert caplog.text.count("event=sink_lost sink=BrokenSink") == 1


async def test_step_listener_when_it_raises_then_it_hears_nothing_more_of_steps_or_events_and_no_turn_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenListener:
        def __init__(self) -> None:
            self.num_steps = self.num_told = 0

        def publish(self, _events: tuple[Numbered, ...], _now: float) -> None:
            self.num_told += 1

        def step_timed(self, _times: StepTimes) -> None:
            self.num_steps += 1
            raise KeyError("a listener's own fault")

    broken = BrokenListener()
    async with running(sinks=[broken], step_listeners=[broken]) as rig:
        events = await read_all(await rig.submit("a", PROMPT))
        assert ids_of(events) == oracle(PROMPT, 8)
        told = broken.num_told
        await read_all(await rig.submit("b", PROMPT))
        assert (broken.num_steps, broken.num_told) == (1, told)
    assert caplog.text.count("event=sink_lost sink=BrokenListener") == 1


class StubbornExecutor(ShadowExecutor):
    """Closes when its thread would: when the forward is over, which may be never."""

    def __init__(self) -> None:
        super().__init__(shadow_capabilities())
        self.may_close = threading.Event()

    def close(self) -> None:
        self.may_close.wait(30)


async def test_stop_when_a_forward_never_ends_and_the_executor_waits_for_it_then_fails_within_its_time() -> None:
    executor = StubbornExecutor()
    engine = LocalEngine(
        Core(core_config(executor)), executor, ByteVocabulary(), config=replace(QUICK, stop_timeout_s=0.1)
    )
    await engine.start()
    executor.hold()
    await engine.open_session(SessionId("s"), streaming=True)
    async with asyncio.timeout(5):
        with pytest.raises(EngineFailed, match="did not stop"):
            await engine.stop()
    assert engine.state is EngineState.FAILED
    executor.may_close.set()


def test_incidents_when_none_is_given_then_an_engine_has_its_own() -> None:
    executor = ShadowExecutor(shadow_capabilities())
    given = Incidents(WallClock())
    engine = LocalEngine(Core(core_config(executor)), executor, ByteVocabulary(), incidents=given)
    assert engine.incident_log is given
    executor.close()
