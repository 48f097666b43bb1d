"""What is drawn of a running engine is what docs/telemetry.md says: no span, attribute, event or link beside it."""

import asyncio
from collections import defaultdict

from telemetry.meanings import KV, ON_ANY_SPAN, ON_EVENTS, SPANS
from telemetry.names import Attr, EventName, SpanName
from telemetry.spans.record import FinishedSpan
from telemetry.spans.sink import SpanSink
from telemetry.spans.tracer import Tracer
from tests.kit.engine_traffic import EngineTraffic
from tests.kit.runtime_rig import running


class Kept:
    """A `SpanTarget` that keeps all."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def take(self, span: FinishedSpan) -> None:
        self.spans.append(span)


async def draw_traffic() -> list[FinishedSpan]:
    """Spans of clients that do everything at once."""
    kept = Kept()
    sink = SpanSink(Tracer((kept,)), 1)
    sink.begin()
    async with running(sinks=(sink,), pool_pages=24, in_flight_max=2, waiting_max=8) as rig:
        async with EngineTraffic(rig.engine, seed=11).running():
            await asyncio.sleep(1.0)
        await rig.wait_no_turns()
    return kept.spans


async def test_spans_when_clients_do_everything_then_each_holds_what_the_page_says() -> None:
    meanings = {span.name: span for span in SPANS}
    seen: dict[str, set[str]] = defaultdict(set)
    for span in await draw_traffic():
        name = KV if span.name.startswith("kv.") else span.name
        meaning = meanings[name]
        seen[name] |= set(span.attributes)
        assert set(span.attributes) <= {*meaning.attributes, *ON_ANY_SPAN}, span.name
        assert {link.relation for link in span.links} <= set(meaning.links), span.name
        for event in span.events:
            assert EventName(event.name) in meaning.events, f"{event.name} of {span.name}"
            assert set(event.attributes) <= set(ON_EVENTS[EventName(event.name)]), event.name
    assert set(seen) >= {SpanName.TURN, SpanName.QUEUE, SpanName.PREFILL, SpanName.DECODE, SpanName.SESSION, KV}
    not_here = {Attr.PARENT_TURN_ID, Attr.DETAIL, Attr.ERROR_TYPE}
    assert set(meanings[SpanName.TURN].attributes) - seen[SpanName.TURN] <= not_here
