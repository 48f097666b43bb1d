"""What the client saw, what the server counts, the spans that a collector got and the metrics agree, turn by turn."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from urllib.request import urlopen

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from services.client import ClientSession, FinishReason, TenureError, Turn
from tests.kit.otlp_receiver import OtlpReceiver, receiving
from tests.kit.runtime_rig import wait_until
from tests.kit.server_rig import CONFIG, ServerRig, running_server
from tests.kit.shadow_executor import shadow_capabilities

TALKERS = 16
LATE_S, STEP_S = 0.06, 0.001
ROOM = {"OTEL_BSP_MAX_QUEUE_SIZE": "65536", "OTEL_BSP_SCHEDULE_DELAY": "200"}
"""So that a machine which is busy with all of this in one process loses nothing."""
ENDED = re.compile(r'tenure_turns_ended_total\{tenure_turn_outcome="(\w+)"\} (\d+)')
DURATIONS = re.compile(r"gen_ai_server_request_duration_seconds_count(?:\{[^}]*\})? (\d+)")
DROPPED = re.compile(r'tenure_telemetry_dropped_total\{tenure_signal="(\w+)"\} (\d+)')


@dataclass(slots=True)
class Seen:
    """By its clients: how turns ended, as far as they were told."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    @property
    def turns(self) -> int:
        return self.outcomes.total()


class Talker:
    """One session and plain turns in turn, with endings of all kinds that a client can bring about."""

    def __init__(self, rig: ServerRig, seed: int, seen: Seen) -> None:
        self._rig = rig
        self._random = Random(seed)
        self._seen = seen
        self._name = f"s{seed}"

    async def talk(self, num_turns: int) -> None:
        session = self._rig.client.session(self._name)
        await session.open()
        for number in range(num_turns):
            if number % 12 == 11:  # before its context is full
                await session.close()
                session = self._rig.client.session(self._name)
                await session.open()
            await self._one(session)
        await session.close()

    async def _one(self, session: ClientSession) -> None:
        ids = [self._random.randrange(256) for _ in range(self._random.randint(1, 4))]
        length = self._random.randint(1, 4)
        kind = self._random.choice(("session", "session", "plain", "left", "late", "refused"))
        source = session if kind == "session" or self._random.random() < 0.3 else self._rig.client
        if kind == "refused":
            with pytest.raises(TenureError):
                await self._read(self._rig.client.generate(token_ids=ids, max_tokens=0))
            self._seen.refused += 1
            return
        timeout_s = None
        if kind in ("left", "late"):  # more than it will come to
            length, timeout_s = 100, LATE_S if kind == "late" else None
        if isinstance(source, ClientSession):
            turn = source.turn(token_ids=ids, max_tokens=length, ignore_eos=True, timeout_s=timeout_s)
        else:
            turn = source.generate(token_ids=ids, max_tokens=length, ignore_eos=True, timeout_s=timeout_s)
        await (self._leave(turn) if kind == "left" else self._read(turn))

    async def _read(self, turn: Turn) -> None:
        try:
            async for _ in turn:
                pass
        except TenureError as error:
            if turn.finish_reason is None and error.reason not in ("DEADLINE", "DEADLINE_EXCEEDED"):
                raise  # it was not accepted
        self._note(turn)

    async def _leave(self, turn: Turn) -> None:
        async for _ in turn:
            break
        await turn.leave()
        self._note(turn)

    def _note(self, turn: Turn) -> None:
        told = turn.finish_reason
        if told is None:
            self._seen.outcomes["unknown"] += 1  # its stream was over before its end could be told
        else:
            self._seen.outcomes["aborted" if told is FinishReason.ABORT else told.value] += 1


def spans_by_outcome(spans: list[Span]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for span in spans:
        if span.name == "turn":
            facts = {each.key: each.value.string_value for each in span.attributes}
            outcome = facts["tenure.turn.outcome"]
            is_good = span.status.code == Status.STATUS_CODE_OK
            assert is_good == (outcome in ("stop", "length")), span
            counts[outcome] += 1
    return counts


def read_page(address: str) -> str:
    with urlopen(address) as page:  # noqa: S310 - loopback
        text: str = page.read().decode()
    return text


def metrics_by_outcome(page: str) -> Mapping[str, int]:
    return {outcome: int(count) for outcome, count in ENDED.findall(page) if int(count)}


async def hold_counts_together(num_turns: int, collector: OtlpReceiver) -> tuple[Seen, Counter[str]]:
    config = replace(CONFIG, pool_tokens=128, otlp_endpoint=collector.endpoint, metrics_port=0, trace_steps=50)
    seen = Seen()
    config = replace(config, full_check_steps=64)
    capabilities = shadow_capabilities(pool_pages=33)
    async with running_server(config, capabilities=capabilities, environment=ROOM) as rig:
        rig.executor.faults.delay_s = lambda _plan: STEP_S
        talkers = [Talker(rig, seed, seen) for seed in range(TALKERS)]
        async with asyncio.TaskGroup() as group:
            for talker in talkers:
                group.create_task(talker.talk(num_turns // TALKERS))

        async def is_quiet() -> bool:
            return not (await rig.client.snapshot()).turns

        await wait_until(is_quiet)
        totals = (await rig.client.history(1.0)).totals
        assert rig.metrics is not None
        page = await asyncio.to_thread(read_page, rig.metrics)
    spans = spans_by_outcome(collector.spans)
    assert spans == Counter(totals.endings) == Counter(metrics_by_outcome(page))
    assert {int(count) for _, count in DROPPED.findall(page)} == {0}
    assert sum(map(int, DURATIONS.findall(page))) == spans.total()
    assert totals.turns_accepted == spans.total()
    return seen, spans


def agree(seen: Seen, spans: Counter[str], num_turns: int) -> None:
    """Each turn that a client was told the end of, ended so; the others ended by their deadline or by being left."""
    assert seen.turns + seen.refused == num_turns // TALKERS * TALKERS
    assert spans.total() >= seen.turns - seen.outcomes["unknown"]
    assert spans["length"] >= seen.outcomes["length"]
    aborted = spans["client"] + spans["deadline"] + spans["disconnect"]
    assert aborted >= seen.outcomes["aborted"] > 0
    assert spans.total() <= seen.turns


async def test_counts_when_800_turns_of_all_kinds_are_over_then_all_four_agree() -> None:
    with receiving() as collector:
        seen, spans = await hold_counts_together(800, collector)
    agree(seen, spans, 800)


@pytest.mark.soak
async def test_counts_when_10000_turns_of_all_kinds_are_over_then_all_four_agree() -> None:
    with receiving() as collector:
        seen, spans = await hold_counts_together(10_000, collector)
    agree(seen, spans, 10_000)
