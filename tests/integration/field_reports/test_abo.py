"""ABO: a turn that is broken off, in whatever state and by whomever, is gone with all that it had; so is its name."""

import asyncio
import gc
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason, OnAbort, TurnMode
from engine.core.ids import SessionId
from engine.core.request import Request
from engine.runtime.handle import TurnOptions
from engine.runtime.turns import LiveTurn
from protos.v1 import generate_pb2, types_pb2
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, FieldRig, Outcome, field_rig, prompt
from tests.integration.field_reports.wire import fields_sent, names_with
from tests.kit.runtime_rig import QUICK, oracle, wait_until
from tests.kit.server_rig import CONFIG, running_server

LENGTH, CLIENT, GONE = FinishReason.LENGTH, AbortReason.CLIENT, AbortReason.DISCONNECT

READ_AND_DIE = """
import asyncio, os, signal, sys
from grpc import aio
from protos.v1 import generate_pb2, generate_pb2_grpc

async def main():
    async with aio.insecure_channel(sys.argv[1]) as channel:
        request = generate_pb2.GenerateRequest.FromString(bytes.fromhex(sys.argv[2]))
        async for message in generate_pb2_grpc.GenerateStub(channel).Generate(request):
            if message.delta.token_ids:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def num_records() -> int:
    """Requests and live turns that anything still refers to."""
    gc.collect()
    return sum(type(each) in (Request, LiveTurn) for each in gc.get_objects())


async def test_client_when_killed_and_its_turn_has_no_name_then_the_turn_is_gone_within_2_s() -> None:
    """ABO-01 (vllm-project/vllm#10806): ignore_eos, no token limit, kill -9; the books are watched from outside."""
    request = generate_pb2.GenerateRequest(
        tokens=types_pb2.TokenInput(token_ids=[7, 1, 9]), sampling=types_pb2.SamplingParams(ignore_eos=True)
    )
    async with running_server(CONFIG) as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.05
        command = (sys.executable, "-c", READ_AND_DIE, rig.target, request.SerializeToString().hex())
        killed = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr

        async def is_gone() -> bool:
            stats = await rig.client.pools()
            return (stats.turns_running, stats.find("full").uncached) == (0, 0)

        await wait_until(is_gone, timeout_s=2.0)
        assert len(rig.executor.submitted) < CONFIG.context_len // 2, "it did not run to its end"


@DEPTHS
async def test_queued_turn_when_aborted_then_its_name_is_free_at_once(depth: int) -> None:
    """ABO-03 (sgl-project/sglang#24070): the batch is full; queued and running turns end on the same path."""
    async with field_rig(replace(DEFAULT, running_max=1, in_flight_max=depth)) as rig:
        rig.pause()
        running = await rig.submit("r", prompt(1, 20), max_tokens=100, content=b"c")
        queued = await rig.submit("q1", prompt(2, 20), content=b"c")
        await rig.abort("q1")
        assert (await rig.collect(queued)).end.outcome is CLIENT
        again = await rig.submit("q1", prompt(2, 20), content=b"c")
        await rig.abort("r")
        assert (await rig.collect(running)).end.outcome is CLIENT
        rerun = await rig.submit("r", prompt(1, 20), max_tokens=4, content=b"c")
        rig.go_on()
        assert (await rig.collect(again)).ids == oracle(prompt(2, 20), 8)
        assert (await rig.collect(rerun)).ids == oracle(prompt(1, 20), 4)
        await rig.require_sound([CLIENT, CLIENT, LENGTH, LENGTH])


@DEPTHS
async def test_turn_id_when_left_and_used_again_at_once_500_times_then_every_second_turn_completes(depth: int) -> None:
    """ABO-05 (vllm-project/vllm#23697): the abort of the first never meets the second of the same name."""
    runtime = replace(QUICK, detach_grace_s=0.0)
    async with field_rig(replace(DEFAULT, in_flight_max=depth), runtime=runtime) as rig:
        before = num_records()
        for round_ in range(500):
            first = await rig.submit(f"x{round_}", prompt(1, 5), max_tokens=200, content=b"long")
            await anext(first)
            await first.aclose()
            second = await rig.submit(f"x{round_}", prompt(2, 5), max_tokens=5, content=b"short")
            assert (await rig.collect(second)).ids == oracle(prompt(2, 5), 5)
        await rig.wait_no_turns()
        assert num_records() <= before
        await rig.require_sound([GONE, LENGTH] * 500)


async def test_branches_when_cancelled_after_3_tokens_100_times_then_no_record_is_left() -> None:
    """ABO-07 (vllm-project/vllm#51629): there is no n; four branches of one turn are the nearest there is."""
    assert not fields_sent() & {"n", "best_of", "num_return_sequences", "num_samples"}
    async with field_rig(replace(DEFAULT, in_flight_max=2)) as rig:
        await rig.open("s", streaming=False)
        await rig.run("root", prompt(1, 20), "s")
        before = num_records()
        for _ in range(100):
            streams = [
                await rig.submit(f"b{n}", prompt(n, 4), session="s", parent="root", max_tokens=200) for n in range(4)
            ]
            for stream in streams:
                await rig.read_some(stream, 3)
            for stream in streams:
                await stream.aclose()
            await rig.wait_no_turns()
        assert num_records() <= before
        assert (await rig.state_of("s")).live_turns == 0
        await rig.require_sound([LENGTH] + [GONE] * 400)


@pytest.mark.parametrize("session", [None, "s"], ids=["plain", "session"])
@pytest.mark.parametrize("way", ["abort", "disconnect"])
@DEPTHS
async def test_turn_when_cancelled_while_its_last_token_is_computed_then_aborted_and_nothing_else(
    depth: int, way: str, session: str | None
) -> None:
    """ABO-09 (vllm-project/vllm#29987): the forward of the last token is out; its answer comes after the end."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s")
        await rig.run("t1", prompt(1, 20), "s")
        history = await rig.history("s")
        rig.pause()
        stream = await rig.submit("t2", prompt(2, 20), session=session, max_tokens=4)
        await rig.let_steps(3)
        told = await rig.read_some(stream, 3)
        assert told == oracle([*(history if session else []), *prompt(2, 20)], 3)
        assert rig.executor.num_in_flight == 1, "the step of the last token, and none behind it"
        if way == "abort":
            await rig.abort("t2", session)
            assert (await rig.collect(stream)).end.outcome is CLIENT
        else:
            await stream.aclose()
            await rig.wait_no_turns()
        rig.go_on()
        books = await rig.full_pool()
        assert (books.uncached, books.draining) == (0, 0)
        assert await rig.history("s") == history
        again = await rig.run("t2", prompt(2, 20), "s", max_tokens=4)
        assert again.ids == oracle(history + prompt(2, 20), 4)
        assert again.end.usage.tokens_computed == 20 + 1
        await rig.require_sound([LENGTH, CLIENT if way == "abort" else GONE, LENGTH])


async def by_abort(rig: FieldRig) -> Outcome:
    stream = await rig.submit("t", prompt(1, 40), max_tokens=200)
    await rig.read_some(stream, 2)
    await rig.abort("t")
    return (await rig.collect(stream)).end.outcome


async def by_disconnect(rig: FieldRig) -> Outcome:
    stream = await rig.submit("t", prompt(1, 40), max_tokens=200)
    await rig.read_some(stream, 2)
    await stream.aclose()
    await rig.wait_no_turns()
    return rig.ended("t")[0].outcome


async def by_deadline(rig: FieldRig) -> Outcome:
    rig.pause()
    return (await rig.collect(await rig.submit("t", prompt(1, 40), max_tokens=200, deadline_s=0.01))).end.outcome


async def by_slow_reader(rig: FieldRig) -> Outcome:
    stream = await rig.submit("t", prompt(1, 40), max_tokens=200)
    await rig.wait_no_turns()
    return (await rig.collect(stream)).end.outcome


async def by_close(rig: FieldRig) -> Outcome:
    await rig.open("s")
    stream = await rig.submit("t", prompt(1, 40), session="s", max_tokens=200)
    await rig.read_some(stream, 2)
    await rig.engine.close_session(SessionId("s"))
    return (await rig.collect(stream)).end.outcome


async def by_failure(rig: FieldRig) -> Outcome:
    rig.executor.faults.failing_steps = {4: "not finite"}
    return (await rig.collect(await rig.submit("t", prompt(1, 40), max_tokens=200))).end.outcome


async def by_replacement(rig: FieldRig) -> Outcome:
    await rig.open("s", streaming=False)
    stream = await rig.submit("t", prompt(1, 40), session="s", max_tokens=200)
    await rig.read_some(stream, 2)
    other = await rig.submit("u", [1], session="s", max_tokens=200, options=TurnOptions(mode=TurnMode.REPLACE))
    await rig.abort("u", "s")
    assert (await rig.collect(other)).end.outcome is CLIENT
    return (await rig.collect(stream)).end.outcome


async def by_kept_abort(rig: FieldRig) -> Outcome:
    await rig.open("s")
    options = TurnOptions(on_abort=OnAbort.KEEP)
    stream = await rig.submit("t", prompt(1, 40), session="s", max_tokens=200, options=options)
    await rig.read_some(stream, 2)
    await rig.abort("t", "s")
    return (await rig.collect(stream)).end.outcome


async def by_refusal(rig: FieldRig) -> None:
    await rig.refused([VOCAB_END])


VOCAB_END = DEFAULT.vocab_size
WAYS: dict[Callable[[FieldRig], Awaitable[Outcome | None]], tuple[Outcome, ...]] = {
    by_abort: (CLIENT,),
    by_disconnect: (GONE,),
    by_deadline: (AbortReason.DEADLINE,),
    by_slow_reader: (AbortReason.SLOW_READER,),
    by_close: (AbortReason.SESSION_CLOSED,),
    by_failure: (AbortReason.FORWARD_FAILED,),
    by_replacement: (AbortReason.REPLACED, CLIENT),
    by_kept_abort: (CLIENT,),
    by_refusal: (),
}
"""Terminal paths other than the normal one, and the endings that each leaves."""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@DEPTHS
async def test_first_turn_ever_when_it_ends_in_any_way_then_the_next_is_served(
    depth: int, way: Callable[[FieldRig], Awaitable[Outcome | None]]
) -> None:
    """ABO-11 (LMCache/LMCache#3688): each terminal path as the first thing that a fresh server sees."""
    runtime = replace(QUICK, unread_ids_max=20)
    async with field_rig(replace(DEFAULT, in_flight_max=depth), runtime=runtime) as rig:
        outcome = await way(rig)
        rig.executor.faults.failing_steps = {}
        assert outcome is (WAYS[way][0] if WAYS[way] else None)
        await rig.require_sound(WAYS[way])


async def test_api_when_looked_through_then_offers_no_second_answer_of_one_request() -> None:
    """ABO-07 (vllm-project/vllm#51629)."""
    assert not names_with(fields_sent(), "best_of", "beam", "num_return")
