"""WDG: hangs, and whether health tells the truth about them."""

import asyncio
import time
from dataclasses import replace

import pytest

from engine.core.commands import FinishReason
from engine.core.core import Core
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import EngineFailed
from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import Vitals, WatchdogConfig, judge
from services.health import read_serving
from tests.kit.health_probe import health_probe
from tests.kit.runtime_rig import (
    QUICK,
    ByteVocabulary,
    core_config,
    end_of,
    ids_of,
    oracle,
    read_all,
    running,
)
from tests.kit.server_rig import CONFIG, running_server
from tests.kit.shadow_executor import Faults, ShadowExecutor, shadow_capabilities

PROMPT = list(range(1, 21))
LIMITS = WatchdogConfig()


async def test_scheduler_when_it_dies_while_turns_run_then_not_alive_and_streams_end() -> None:
    """WDG-01 (sgl-project/sglang#6624): the loop's task is cancelled from outside, as a crash would end it."""
    async with running() as rig:
        vitals = rig.engine.vitals
        rig.executor.hold()
        stream = await rig.submit("t", PROMPT)
        assert "liveness" in read_serving(vitals, LIMITS)
        for task in asyncio.all_tasks():
            if task.get_name() == "engine-loop":
                task.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(EngineFailed):
                await read_all(stream)
        assert (rig.engine.state, read_serving(vitals, LIMITS)) == (EngineState.FAILED, ())


async def test_server_when_saturated_with_long_prompts_then_every_probe_is_answered_in_its_time() -> None:
    """WDG-03 (gonka-ai/gonka#1421): probes in a thread of theirs, a hundred of them while prompts are computed."""
    async with running_server(replace(CONFIG, health_port=0)) as rig:
        assert rig.health is not None
        turns = [rig.client.generate("x" * 100, max_tokens=20, ignore_eos=True) for _ in range(40)]
        reading = asyncio.gather(*(rig.collect(turn) for turn in turns))
        took_s = await asyncio.to_thread(probe_often, rig.health, 100)
        assert [len(ids) for ids in await reading] == [20] * 40
        assert max(took_s) < 1.0


def probe_often(address: str, times: int) -> list[float]:
    """Seconds that each probe took. Raises AssertionError when one is not told that the server is alive."""
    took_s = []
    with health_probe(address) as probe:
        for _ in range(times):
            began_s = time.monotonic()
            assert probe.is_serving("liveness", timeout_s=1.0)
            took_s.append(time.monotonic() - began_s)
    return took_s


async def test_start_when_the_first_forward_takes_three_times_the_limit_of_a_step_then_it_is_not_late() -> None:
    """WDG-05 (sgl-project/sglang#3752): what compiles has its own limit, and comes before readiness."""
    limits = WatchdogConfig(prefill_s=0.1, decode_s=0.1, warming_s=0.1, idle_s=5.0)
    executor = ShadowExecutor(shadow_capabilities(), faults=Faults(prepare_delay_s=0.3))
    vitals = Vitals()
    engine = LocalEngine(
        Core(core_config(executor)), executor, ByteVocabulary(), config=replace(QUICK, warm_up=True), vitals=vitals
    )
    starting = asyncio.create_task(engine.start())
    while not starting.done():
        assert judge(vitals, limits) is None
        assert "liveness" in read_serving(vitals, limits)
        assert ("readiness" in read_serving(vitals, limits)) == (engine.state is EngineState.SERVING)
        await asyncio.sleep(0.01)
    await starting
    assert "readiness" in read_serving(vitals, limits)
    await engine.stop()


async def test_request_when_it_comes_after_an_idle_time_with_timers_due_then_served_at_once() -> None:
    """WDG-07 (sgl-project/sglang#3836): sleeping until something comes loses nothing, whatever timers fire."""
    async with running(runtime=replace(QUICK, expire_interval_s=0.005)) as rig:
        for number in range(30):
            await rig.open(f"s{number}", idle_timeout_s=0.01)
            await asyncio.sleep(0.001 * (number % 12))
            async with asyncio.timeout(2):
                events = await read_all(await rig.submit(f"t{number}", PROMPT))
            assert end_of(events).outcome is FinishReason.LENGTH
            assert ids_of(events) == oracle(PROMPT, 8)


async def test_stream_when_it_is_long_then_the_event_loop_comes_round_and_other_calls_are_answered() -> None:
    """WDG-09 (waybarrios/vllm-mlx#261): a tenth of 2,000 tokens, with ten other calls and health meanwhile."""
    async with running_server() as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.002
        turn = rig.client.generate("x", max_tokens=120, ignore_eos=True)
        reading = asyncio.create_task(rig.collect(turn))
        for _ in range(10):
            assert (await rig.client.pools()).balanced
            assert await rig.client.is_ready()
            await asyncio.sleep(0.01)
        assert not reading.done(), "the calls were answered while the stream ran"
        assert len(await reading) == 120
