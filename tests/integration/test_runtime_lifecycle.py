"""Start, stop and failure: nobody is left waiting, and books that can not be trusted end the service."""

import asyncio
import logging
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, Close, Command, FinishReason
from engine.core.core import Core
from engine.core.errors import InvariantViolation
from engine.core.findings import CheckLevel, Finding, Report
from engine.core.ids import SessionId, TurnId, pack_ids
from engine.core.plan import StepPlan
from engine.core.sliced_check import SLICE_UNITS
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import EngineClosed, EngineFailed, TurnRequest
from engine.runtime.lifecycle import EngineState
from tests.kit.runtime_rig import QUICK, ByteVocabulary, core_config, end_of, ids_of, oracle, read_all, running
from tests.kit.shadow_executor import Faults, ShadowExecutor, shadow_capabilities

PROMPT = [7, 1, 9, 4]
TURN = TurnRequest(TurnId("t"), pack_ids(PROMPT), max_tokens=100)


async def test_start_when_warm_up_is_on_then_a_forward_ran_before_serving_and_nothing_is_held() -> None:
    async with running(runtime=replace(QUICK, warm_up=True)) as rig:
        assert rig.engine.state is EngineState.SERVING
        assert rig.executor.submitted
        books = await rig.full_pool()
        assert books.available == books.total


async def test_start_when_the_first_forward_fails_then_it_does_not_serve() -> None:
    executor = ShadowExecutor(shadow_capabilities(), faults=Faults(failing_steps={1: "out of memory"}))
    engine = LocalEngine(Core(core_config(executor)), executor, ByteVocabulary(), config=replace(QUICK, warm_up=True))
    with pytest.raises(EngineFailed, match="out of memory"):
        await engine.start()
    assert engine.state is not EngineState.SERVING
    await engine.stop()


async def test_stop_when_a_turn_runs_then_shutdown_and_later_calls_are_refused() -> None:
    async with running() as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.001
        reading = asyncio.create_task(read_all(await rig.submit("t", PROMPT, max_tokens=200)))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(2):
            await rig.engine.stop()
        assert end_of(await reading).outcome is AbortReason.SHUTDOWN
        assert rig.engine.state is EngineState.STOPPED
        with pytest.raises(EngineClosed):
            await rig.submit("t2", PROMPT)
        with pytest.raises(EngineClosed):
            await rig.open("s")
        await rig.engine.stop()  # idempotent


async def test_stop_when_draining_then_running_turns_finish_and_new_ones_are_refused() -> None:
    async with running() as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.001
        reading = asyncio.create_task(read_all(await rig.submit("t", PROMPT, max_tokens=20)))
        stopping = asyncio.create_task(rig.engine.stop(drain_s=10))
        await asyncio.sleep(0)
        with pytest.raises(EngineClosed):
            await rig.submit("t2", PROMPT)
        events = await reading
        await stopping
        assert end_of(events).outcome is FinishReason.LENGTH
        assert ids_of(events) == oracle(PROMPT, 20)


async def test_stop_when_the_drain_time_passes_then_the_rest_is_aborted() -> None:
    async with running() as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.001
        reading = asyncio.create_task(read_all(await rig.submit("t", PROMPT, max_tokens=200)))
        await rig.engine.stop(drain_s=0.02)
        assert end_of(await reading).outcome is AbortReason.SHUTDOWN


async def test_stop_when_a_forward_never_ends_then_fails_within_its_time() -> None:
    async with running(runtime=replace(QUICK, stop_timeout_s=0.05)) as rig:
        rig.executor.hold()
        await rig.submit("t", PROMPT)
        await asyncio.sleep(0)
        async with asyncio.timeout(2):
            with pytest.raises(EngineFailed, match="did not stop"):
                await rig.engine.stop()
        assert rig.engine.state is EngineState.FAILED


async def test_executor_when_lost_then_streams_fail_and_the_engine_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """WDG-01 (sgl-project/sglang#6624): a dead loop is never a healthy server."""
    caplog.set_level(logging.CRITICAL)
    async with running() as rig:
        rig.executor.hold()
        stream = await rig.submit("t", PROMPT)
        rig.executor.faults.lost = RuntimeError("the device is gone")
        rig.executor.let_go()
        with pytest.raises(EngineFailed, match="the device is gone"):
            await read_all(stream)
        with pytest.raises(EngineFailed):
            await rig.engine.wait_ended()
        assert rig.engine.state is EngineState.FAILED
        with pytest.raises(EngineClosed):
            await rig.submit("t2", PROMPT)
        with pytest.raises(EngineFailed):
            await rig.engine.stop()
    assert "event=engine_halted" in caplog.text


class LyingCore(Core):
    """Its books disagree from the moment that it is told to."""

    lies: CheckLevel | None = None

    def check(self, level: CheckLevel) -> Report:
        if level is self.lies:
            return Report(level, (Finding("equation", "full: 3 pages are owned twice"),))
        return super().check(level)

    def check_slice(self, units: int = SLICE_UNITS) -> Report | None:
        report = super().check_slice(units)
        return report if report is None else self.check(CheckLevel.FULL)


class IdleCore(Core):
    """Takes turns and never plans them."""

    def next_plan(self, now: float) -> StepPlan | None:
        return None


async def start(core_type: type[Core]) -> tuple[LocalEngine, Core]:
    executor = ShadowExecutor(shadow_capabilities())
    core = core_type(core_config(executor))
    engine = LocalEngine(core, executor, ByteVocabulary(), config=replace(QUICK, full_check_steps=1000))
    await engine.start()
    return engine, core


@pytest.mark.parametrize("level", CheckLevel)
async def test_check_when_it_finds_something_then_the_engine_halts(
    level: CheckLevel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    engine, core = await start(LyingCore)
    assert isinstance(core, LyingCore)
    core.lies = level
    waiting = [await engine.submit(replace(TURN, max_tokens=3)) for _ in range(1)]
    with pytest.raises(EngineFailed, match="3 pages are owned twice"):
        await engine.wait_ended()
    if level is CheckLevel.BUSY:
        with pytest.raises(EngineFailed, match="3 pages are owned twice"):
            await read_all(waiting[0])
    assert engine.state is EngineState.FAILED
    assert "3 pages are owned twice" in caplog.text
    with pytest.raises(EngineFailed):
        await engine.stop()


async def test_turns_when_the_core_plans_none_of_them_then_a_stall_is_a_failure_and_not_a_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    engine, _core = await start(IdleCore)
    stream = await engine.submit(TURN)
    with pytest.raises(EngineFailed, match="plans nothing"):
        await read_all(stream)
    with pytest.raises(EngineFailed):
        await engine.stop()


class BrokenCore(Core):
    """Breaks over the first session that is closed."""

    def apply(self, command: Command, now: float) -> None:
        if isinstance(command, Close):
            raise InvariantViolation("a page has two owners")
        super().apply(command, now)


async def test_loop_when_it_breaks_over_a_command_then_every_sender_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    engine, _core = await start(BrokenCore)
    closing = [asyncio.create_task(engine.close_session(SessionId(name))) for name in ("a", "b")]
    answers = await asyncio.gather(*closing, return_exceptions=True)
    assert [type(answer) for answer in answers] == [EngineClosed, EngineClosed]
    assert engine.state is EngineState.FAILED
    with pytest.raises(EngineFailed, match="two owners"):
        await engine.stop()


async def test_engine_when_core_and_executor_do_not_fit_then_refused_by_name() -> None:
    executor = ShadowExecutor(shadow_capabilities())
    config = replace(core_config(executor), num_rows=5)
    with pytest.raises(ValueError, match="num_rows: the core plans for 5, the executor has 8"):
        LocalEngine(Core(config), executor, ByteVocabulary())
