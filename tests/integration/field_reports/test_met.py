"""MET: counters that count, each ending by its reason and each token by its source, and that can be divided."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc import aio

from protos.v1 import admin_pb2, generate_pb2, generate_pb2_grpc, history_pb2, types_pb2
from services.client import Client, Turn, Usage
from services.client.history import History, Totals
from telemetry.metrics.catalogue import PAIRS, Pair, find_metric, prometheus_name
from telemetry.names import Kind
from tests.kit.runtime_rig import wait_until
from tests.kit.scraping import QueryEngine, Scrape, needs_prometheus, prometheus_of, scrape
from tests.kit.server_rig import CONFIG, ServerRig, running_server

STEP_S = 0.05
LONG = 100
PROMPT = tuple(range(10, 50))
METERED = replace(CONFIG, metrics_port=0)
ENDED, ACCEPTED = "tenure_turns_ended_total", "tenure_turns_accepted_total"
FLOATS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


@dataclass(frozen=True, slots=True)
class Callers:
    """Calls beside our own client, which leaves a turn in its own way."""

    stub: "generate_pb2_grpc.GenerateAsyncStub"  # the class exists in the published types only

    def begin(
        self, number: int, turn_id: str | None = None, timeout_s: float | None = None
    ) -> aio.UnaryStreamCall[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]:
        request = generate_pb2.GenerateRequest(
            turn_id=turn_id,
            tokens=types_pb2.TokenInput(token_ids=[number, 1, 2]),
            sampling=types_pb2.SamplingParams(ignore_eos=True, max_tokens=LONG),
        )
        return self.stub.Generate(request, timeout=timeout_s)


@asynccontextmanager
async def callers(target: str) -> AsyncIterator[Callers]:
    async with aio.insecure_channel(target) as channel:
        stub: generate_pb2_grpc.GenerateAsyncStub = generate_pb2_grpc.GenerateStub(channel)
        yield Callers(stub)


async def totals_once(client: Client, holds: Callable[[Totals], bool]) -> Totals:
    """The totals as soon as that holds of them. Raises TimeoutError."""

    async def does_hold() -> bool:
        return holds((await client.history(1.0)).totals)

    await wait_until(does_hold)
    return (await client.history(1.0)).totals


async def have_ended(client: Client, num_turns: int) -> Totals:
    return await totals_once(client, lambda totals: sum(totals.endings.values()) == num_turns)


async def scrape_of(rig: ServerRig) -> Scrape:
    assert rig.metrics is not None
    return await scrape(rig.metrics)


async def test_endings_when_10_clients_cancel_3_are_aborted_and_2_run_out_of_time_then_counted_by_reason() -> None:
    """MET-01 (vllm-project/vllm#31503): turns that run and turns that wait, ended by three ways; nothing else ends."""
    async with running_server(METERED) as rig, callers(rig.target) as outside:
        rig.executor.faults.delay_s = lambda _plan: STEP_S
        cancelled = [outside.begin(number) for number in range(10)]
        aborted = [outside.begin(20 + number, f"abort-{number}") for number in range(3)]
        # Named, so that they are kept for a while where the client's clock is faster and it leaves first.
        late = [outside.begin(30 + number, f"late-{number}", timeout_s=1.0) for number in range(2)]
        readers = [asyncio.create_task(drain(call)) for call in (*cancelled, *aborted, *late)]
        await totals_once(rig.client, lambda totals: totals.turns_accepted == 15)
        for number in range(3):
            await outside.stub.Abort(generate_pb2.AbortRequest(turn_id=f"abort-{number}"))
        for call in cancelled:
            call.cancel()
        totals = await have_ended(rig.client, 15)
        assert totals.endings == {"disconnect": 10, "client": 3, "deadline": 2}
        page = await scrape_of(rig)
        assert page.by(ENDED, "tenure_turn_outcome") == totals.endings
        durations = page.by("gen_ai_server_request_duration_seconds_count", "error_type")
        assert durations == totals.endings
        codes = await asyncio.gather(*readers)
        assert codes[10:13] == [grpc.StatusCode.ABORTED] * 3
        assert codes[13:] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 2


async def drain(
    call: aio.UnaryStreamCall[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse],
) -> grpc.StatusCode | None:
    """How a stream that is read to its end ended; None for one that was cancelled here."""
    try:
        async for _ in call:
            pass
    except asyncio.CancelledError:
        return None
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_hit_tokens_when_hits_misses_and_probes_mix_then_counters_that_only_turns_raise() -> None:
    """MET-03 (sgl-project/sglang#26608): read between any two, as by a scraper; a probe changes none of them."""
    async with running_server(METERED) as rig:
        probe = rig.client.is_ready
        seen = [(await rig.client.history()).totals]
        assert parts(seen[0]) == (0, 0, 0), "the turn that warms the server up is not counted"
        require_sources(await scrape_of(rig), (0, 0, 0))
        async with rig.client.session("s", streaming=True) as session:
            first = session.turn(token_ids=PROMPT, max_tokens=3, ignore_eos=True)
            miss, hit = generate(rig, PROMPT), generate(rig, PROMPT)
            second = session.turn(token_ids=(7, 8), max_tokens=3, ignore_eos=True)
            other = generate(rig, tuple(range(90, 110)))
            expected = (0, 0, 0)
            for turn in (first, miss, hit, second, other):
                await rig.collect(turn)
                usage = turn.usage
                assert usage is not None
                assert sum(parts_of(usage)) == usage.context_tokens
                expected = add(expected, parts_of(usage))
                for _ in range(3):
                    assert await probe()
                    await rig.client.pools()
                    totals = (await rig.client.history(60.0)).totals
                    assert parts(totals) == expected
                    require_sources(await scrape_of(rig), expected)
                    seen.append(totals)
        assert parts(seen[-1])[0] > 0, "the session's second turn found its KV in the slot"
        assert parts(seen[-1])[1] > 0, "the plain turns found the prompt in the tree"
        assert seen[-1].turns_accepted == 5
        assert (await scrape_of(rig)).value(ACCEPTED) == 5


def require_sources(page: Scrape, expected: tuple[int, int, int]) -> None:
    for source, count in zip(("slot", "tree", "computed"), expected, strict=True):
        assert page.value("tenure_prompt_tokens_total", tenure_source=source) == count
        assert page.value("tenure_prompt_context_total", tenure_source=source) == sum(expected)


def generate(rig: ServerRig, token_ids: tuple[int, ...]) -> Turn:
    return rig.client.generate(token_ids=token_ids, max_tokens=3, ignore_eos=True)


def parts(totals: Totals) -> tuple[int, int, int]:
    return totals.tokens_from_slot, totals.tokens_from_tree, totals.tokens_to_compute


def parts_of(usage: Usage) -> tuple[int, int, int]:
    return usage.tokens_from_slot, usage.tokens_from_tree, usage.tokens_computed


def add(left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int]:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


async def test_pairs_when_divided_then_both_are_of_the_same_things_at_every_moment() -> None:
    """MET-05 (llm-d/llm-d-autoscaling#1351): each pair that the interface documents, while turns run, wait and end."""
    async with running_server(METERED) as rig, callers(rig.target) as outside:
        rig.executor.faults.failing_steps[(await rig.client.pools()).steps + 2] = "broke"
        await drain(outside.begin(1))
        rig.executor.faults.delay_s = lambda _plan: STEP_S
        calls = [outside.begin(number) for number in range(2, 12)]
        readers = [asyncio.create_task(drain(call)) for call in calls]
        await totals_once(rig.client, lambda totals: totals.turns_accepted == 11)
        require_pairs(await rig.client.history(), alive=10)
        require_scraped_pairs(await scrape_of(rig), alive=10)
        for number, call in enumerate(calls, 1):
            call.cancel()
            await have_ended(rig.client, 1 + number)
            require_pairs(await rig.client.history(), alive=10 - number)
            require_scraped_pairs(await scrape_of(rig), alive=10 - number)
        await asyncio.gather(*readers)


def require_pairs(history: History, *, alive: int) -> None:
    totals, samples = history.totals, history.samples
    assert totals.turns_accepted - sum(totals.endings.values()) == alive
    assert samples[-1].turns_running + samples[-1].turns_waiting == alive
    assert sum(sample.turns_ended for sample in samples) == sum(totals.endings.values())
    assert sum(sample.steps for sample in samples) == totals.steps
    assert sum(sample.steps_failed for sample in samples) == totals.steps_failed == 1
    assert 0 < totals.steps_failed <= totals.steps
    for sample in samples:
        assert set(sample.moves) == set(sample.moved_units), "a move's hand-overs and its units have the same names"
        assert all(sample.moved_units[move] >= count > 0 for move, count in sample.moves.items())
        for pool in sample.pools:
            terms = pool.available + pool.evictable + pool.protected + pool.session_held + pool.uncached
            assert terms == pool.total


def require_scraped_pairs(page: Scrape, *, alive: int) -> None:
    assert page.value(ACCEPTED) - sum(page.by(ENDED, "tenure_turn_outcome").values()) == alive
    assert page.value("tenure_turns_running") + page.value("tenure_turns_waiting") == alive
    for pair in PAIRS:
        part, whole = scraped_names(pair)
        assert page.label_sets(part) == page.label_sets(whole) != set()


def scraped_names(pair: Pair) -> tuple[str, str]:
    return prometheus_name(find_metric(pair.part)), prometheus_name(find_metric(pair.whole))


@needs_prometheus
async def test_pairs_when_divided_in_a_query_engine_then_every_series_of_one_has_its_ratio(tmp_path: Path) -> None:
    """MET-05 (llm-d/llm-d-autoscaling#1351): each documented pair, as documented, in a Prometheus that scrapes us."""
    async with running_server(METERED) as rig:
        assert rig.metrics is not None
        async with prometheus_of(rig.metrics, tmp_path) as engine:
            for prompt in (PROMPT, PROMPT, PROMPT[:7]):
                await rig.collect(generate(rig, prompt))
            page = await scrape_of(rig)

            async def has_seen_it() -> bool:
                return list((await engine.query(ACCEPTED)).values()) == [3.0]

            await wait_until(has_seen_it, timeout_s=20.0)
            for pair in PAIRS:
                ratios = await divide(engine, pair)
                assert set(ratios) == page.label_sets(scraped_names(pair)[0]), pair.part
            (sources, context) = scraped_names(PAIRS[0])
            shares = await engine.query(f"{sources} / {context}")
            assert sum(shares.values()) == pytest.approx(1.0)
            assert 0 < shares[frozenset({("tenure_source", "tree")})] < 1


async def divide(engine: QueryEngine, pair: Pair) -> dict[frozenset[tuple[str, str]], float]:
    """As the catalogue says it is done."""
    part, whole = scraped_names(pair)
    if find_metric(pair.part).kind is Kind.COUNTER:
        return await engine.query(f"rate({part}[5m]) / rate({whole}[5m])")
    return await engine.query(f"{part} / {whole}")


@pytest.mark.parametrize("message", [admin_pb2.HistorySample.DESCRIPTOR, history_pb2.Totals.DESCRIPTOR])
def test_fields_when_listed_then_counts_are_whole_and_all_else_has_its_unit_in_its_name(message: Descriptor) -> None:
    """MET-05 (llm-d/llm-d-autoscaling#1351): no share, whose range a version could change: whoever reads divides."""
    for one in message.fields:
        words = set(one.name.split("_"))
        assert not words & {"rate", "ratio", "share", "percent", "usage", "perc", "util"}, one.name
        if one.type in FLOATS:
            assert words & {"s", "ms"}, f"{one.name} is of which unit?"
        elif one.message_type is None:
            assert one.type == FieldDescriptor.TYPE_INT64, one.name
