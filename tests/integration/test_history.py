"""The last hour of a running engine and of a running server: as told by the events, and as a client reads it."""

import grpc
import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import TokensSampled, TurnAccepted
from engine.core.ids import TurnId
from engine.core.ownership import PoolKind
from services.cli.pool_history import format_pool_history
from services.client import TenureError
from telemetry.history import HistorySink
from tests.kit.runtime_rig import ids_of, read_all, running
from tests.kit.server_rig import CONFIG, running_server
from tests.kit.shadow_executor import shadow_capabilities

POOL_PAGES = 24


def make_sink() -> HistorySink:
    sizes = shadow_capabilities(pool_pages=POOL_PAGES)
    return HistorySink({PoolKind.FULL: sizes.pool_pages, PoolKind.ROWS: sizes.num_rows})


async def test_sink_when_an_engine_is_under_pressure_then_books_at_rest_and_totals_are_the_engines() -> None:
    sink = make_sink()
    async with running(sinks=(sink,), pool_pages=POOL_PAGES, in_flight_max=2) as rig:
        for number in range(6):
            await rig.open(f"s{number}")
        ids = 0
        for turn in range(3):
            for number in range(6):
                ids += len((await rig.run(f"t{number}-{turn}", [number + 1] * 9, f"s{number}")).ids)
        left = await rig.submit("left", [1, 2, 3], max_tokens=64)
        await rig.engine.abort(None, TurnId("left"))
        ids += len(ids_of(await read_all(left)))
        await rig.full_pool()
        history, snapshot = sink.read(), await rig.engine.snapshot()
        last, totals = history.samples[-1], history.totals
        assert last.pools == snapshot.pools
        assert (last.sessions_open, last.turns_running, last.turns_waiting) == (6, 0, 0)
        assert totals.endings == {FinishReason.LENGTH: 18, AbortReason.CLIENT: 1}
        assert totals.demotions > 0, "six sessions of 50 tokens do not fit into the pool"
        events = [numbered.event for numbered in rig.sink.events]
        assert totals.tokens_generated == sum(len(e.token_ids) for e in events if isinstance(e, TokensSampled)) >= ids
        assert totals.turns_accepted == sum(isinstance(event, TurnAccepted) for event in events)
        assert sum(sample.steps for sample in history.samples) == totals.steps == snapshot.steps
        assert any(sample.first_token_ms_p50 > 0 for sample in history.samples)


async def test_history_when_read_from_a_server_then_samples_facts_and_totals_of_its_turns_alone() -> None:
    async with running_server(CONFIG) as rig:
        before = await rig.client.history()
        assert (before.totals.turns_accepted, before.totals.steps, before.facts) == (0, 0, ())
        async with rig.client.session("s", streaming=True) as session:
            await rig.collect(session.turn(token_ids=range(10), max_tokens=3, ignore_eos=True, turn_id="t"))
            history = await rig.client.history()
        assert history.interval_s == 1.0
        assert history.started_s <= history.samples[0].time_s <= history.samples[-1].time_s <= history.now_s
        assert history.totals.endings == {"length": 1}
        assert history.samples[-1].find("full").page_size == CONFIG.page_size
        told = [fact.what for fact in history.facts]
        assert (told[0], told[1]) == ("opened", "turn_accepted")
        assert {"kv", "donate", "park", "turn_ended"} <= set(told)
        assert {fact.session_id for fact in history.facts} == {"s"}
        assert {fact.turn_id for fact in history.facts if fact.what == "turn_ended"} == {"t"}
        assert (await rig.client.history(with_facts=False)).facts == ()
        assert "1 accepted, 1 ended, 0 alive" in format_pool_history(await rig.client.history(1.0))


@pytest.mark.parametrize("last_s", [0.0, -1.0, float("nan"), float("inf")])
async def test_history_when_the_time_asked_for_is_none_then_refused_by_name(last_s: float) -> None:
    async with running_server(CONFIG) as rig:
        with pytest.raises(TenureError) as caught:
            await rig.client.history(last_s)
        assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "last_s")
