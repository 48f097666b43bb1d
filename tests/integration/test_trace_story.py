"""One scripted story, told to a real collector by a whole server: every span, its parents, links, owners, counts."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from services.client import TenureError, Turn
from tests.kit.otlp_receiver import receiving
from tests.kit.runtime_rig import wait_until
from tests.kit.server_rig import CONFIG, ServerRig, running_server
from tests.kit.shadow_executor import shadow_capabilities
from tests.kit.trace_tree import TraceForest

GOLDEN = Path(__file__).parent / "data" / "trace_story.json"
CALLER_SPAN = 0xCA11
NEVER_S = 3600.0


class Acts:
    """Each act of the story is done under a trace of its own, which the client hands on."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}

    @contextmanager
    def act(self, label: str) -> Iterator[None]:
        trace_id = len(self.labels) + 1
        self.labels[f"{trace_id:032x}"] = label
        caller = SpanContext(trace_id, CALLER_SPAN, is_remote=False, trace_flags=TraceFlags(1))
        with use_span(NonRecordingSpan(caller)):
            yield


async def read(turn: Turn) -> None:
    async for _ in turn:
        pass


async def tell_story(rig: ServerRig, acts: Acts) -> None:
    client, executor = rig.client, rig.executor
    with acts.act("open s"):
        session = client.session("s")
        await session.open()
    for number in range(1, 5):
        with acts.act(f"turn t{number}"):
            await read(session.turn(token_ids=[number] * 5, max_tokens=4, ignore_eos=True, turn_id=f"t{number}"))
    with acts.act("a large turn, for which s is demoted and evicted"):
        await read(client.generate(token_ids=list(range(100, 200)), max_tokens=4, ignore_eos=True, turn_id="large"))
    with acts.act("turn t5, recomputed"):
        await read(session.turn(token_ids=[5] * 5, max_tokens=4, ignore_eos=True, turn_id="t5"))
    with acts.act("turn t6, aborted"):
        # The device answers the prompt and two more tokens, and nothing then.
        last = executor.submitted[-1].step + 3
        executor.faults.delay_s = lambda plan: NEVER_S if plan.step > last else 0.0
        turn = session.turn(token_ids=[6] * 5, max_tokens=30, ignore_eos=True, turn_id="t6")
        pieces = aiter(turn)
        seen = 0
        while seen < 3:
            seen += len((await anext(pieces)).token_ids)
        aborting = turn.start_leaving()
        assert aborting is not None

        async def is_aborted() -> bool:
            return (await client.snapshot()).turns[0].phase == "rolling_back"

        await wait_until(is_aborted)
        executor.faults.delay_s = lambda _plan: 0.0
        executor.hold()
        executor.let_go()
        await aborting

        async def is_over() -> bool:
            return not (await client.snapshot()).turns

        await wait_until(is_over)
    with acts.act("two turns that outgrow the pool"):
        executor.hold()
        reading: list[asyncio.Task[None]] = []

        async def have_come() -> bool:
            return len((await client.snapshot()).turns) == len(reading)

        for number in (1, 2):
            turn = client.generate(token_ids=[number] * 20, max_tokens=60, ignore_eos=True, turn_id=f"p{number}")
            reading.append(asyncio.create_task(read(turn)))
            await wait_until(have_come)
        executor.let_go()
        await asyncio.gather(*reading)
    with acts.act("turn t7"):
        await read(session.turn(token_ids=[7] * 5, max_tokens=4, ignore_eos=True, turn_id="t7"))
    with acts.act("fork f"):
        fork = await session.fork("f")
    with acts.act("turn u1 of f"):
        await read(fork.turn(token_ids=[8] * 5, max_tokens=4, ignore_eos=True, turn_id="u1"))
    with acts.act("close s"):
        await session.close()
    with acts.act("close f"):
        await fork.close()
    with acts.act("refused"), pytest.raises(TenureError):
        await read(client.generate(token_ids=[1], max_tokens=0, turn_id="none"))


async def test_story_when_told_then_its_spans_are_those_of_the_golden_file(request: pytest.FixtureRequest) -> None:
    acts = Acts()
    with receiving() as collector:
        config = replace(CONFIG, pool_tokens=128, context_len=128, otlp_endpoint=collector.endpoint, trace_steps=0)
        capabilities = shadow_capabilities(pool_pages=33, context_len=128)
        async with running_server(config, capabilities=capabilities) as rig:
            await tell_story(rig, acts)
        forest = TraceForest(collector.spans, acts.labels)
    told = json.dumps(forest.trees(), indent=1, ensure_ascii=False) + "\n"
    if request.config.getoption("--refresh-golden"):
        GOLDEN.write_text(told)
    assert json.loads(told) == json.loads(GOLDEN.read_text())
    assert "-> ?" not in told, "a link leads nowhere"
