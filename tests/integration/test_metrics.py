"""Metrics of a running engine, as they are scraped."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from opentelemetry import metrics as otel

from engine.core.events import TokensSampled
from engine.core.ownership import PoolKind
from telemetry.export.resource import build_resource
from telemetry.metrics.catalogue import METRICS, PAIRS, find_metric, prometheus_name
from telemetry.metrics.endpoint import MetricsPortTaken
from telemetry.metrics.loop_lag import measure_lag
from telemetry.metrics.provider import Metrics
from telemetry.names import Kind
from telemetry.settings import TelemetrySettings
from tests.kit.engine_traffic import EngineTraffic
from tests.kit.metering import SIZES, make_sink, measured_engine, metering, mixed_run, url_of
from tests.kit.scraping import Scrape, fetch, needs_prometheus, promtool, scrape
from tests.kit.server_rig import CONFIG, running_server

WAIT_S = 20.0


@needs_prometheus
async def test_scrape_when_the_engine_has_worked_then_promtool_has_nothing_to_say() -> None:
    async with measured_engine() as measured:
        await mixed_run(measured.rig)
        page = await measured.scrape()
        checked = await asyncio.to_thread(promtool, "check", "metrics", stdin=page.text)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


async def test_scrape_when_the_engine_has_worked_then_it_says_what_the_history_and_the_books_say() -> None:
    async with measured_engine() as measured:
        await mixed_run(measured.rig)
        page, totals = await measured.scrape(), measured.history.read().totals
        snapshot = await measured.rig.engine.snapshot()
        for books in snapshot.pools:
            assert units(page, books.pool) == {
                "available": books.available,
                "evictable": books.evictable,
                "protected": books.protected,
                "session_held": books.session_held,
                "uncached": books.uncached,
            }
            assert page.value("tenure_pool_size", tenure_pool=books.pool) == books.total
        assert page.by("tenure_turns_ended_total", "tenure_turn_outcome") == totals.endings
        assert page.value("tenure_turns_accepted_total") == totals.turns_accepted == 19
        moves: dict[str, float] = {}
        for labels in page.label_sets("tenure_kv_moves_total"):
            move = dict(labels)["tenure_kv_move"]
            moves[move] = moves.get(move, 0.0) + page.series["tenure_kv_moves_total", labels]
        assert {move: count for move, count in moves.items() if count} == totals.moves
        sources = page.by("tenure_prompt_tokens_total", "tenure_source")
        assert sources.get("slot", 0) == totals.tokens_from_slot
        assert sources.get("tree", 0) == totals.tokens_from_tree
        assert sources["computed"] == totals.tokens_to_compute
        assert page.value("tenure_generated_tokens_total") == totals.tokens_generated
        assert page.value("tenure_demotions_total") == totals.demotions > 0
        assert page.value("tenure_retractions_total") == totals.retractions
        assert page.value("tenure_steps_total") == totals.steps == snapshot.steps
        assert page.value("tenure_sessions_opened_total") == page.value("tenure_sessions_open") == 6
        assert page.value("tenure_kv_events_total") > 0
        sampled = [each.event for each in measured.rig.sink.events if isinstance(each.event, TokensSampled)]
        first = sum(event.output_start == 0 for event in sampled)
        assert page.value("gen_ai_server_time_to_first_token_seconds_count") == first
        durations = page.by("gen_ai_server_request_duration_seconds_count", "error_type")
        assert durations == {"": 18, "client": 1}


def units(page: Scrape, pool: PoolKind) -> dict[str, float]:
    return {
        dict(labels)["tenure_owner"]: page.series["tenure_pool_units", labels]
        for labels in page.label_sets("tenure_pool_units")
        if ("tenure_pool", str(pool)) in labels
    }


async def test_scrape_when_nothing_was_done_yet_then_each_metric_of_the_catalogue_and_no_other_is_there() -> None:
    async with measured_engine() as measured:
        page = await measured.scrape()
        told = page.names - {"target_info"}
        expected = set()
        for metric in METRICS:
            name = prometheus_name(metric)
            is_histogram = metric.kind is Kind.HISTOGRAM
            expected |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if is_histogram else {name}
        assert {name for name in told if not name.endswith("_created")} == expected
        (target,) = page.label_sets("target_info")
        assert dict(target)["service_name"] == "tenure"
        assert dict(target)["service_version"]


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads give way to each other all the time, so that one meets every state of another."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty_threads")
async def test_scrapes_when_clients_do_everything_at_once_then_each_is_of_one_moment() -> None:
    """Two scrapers without a pause, so that they meet each other too."""
    async with measured_engine() as measured:
        pages: list[Scrape] = []

        async def scrape_all() -> None:
            while not done.is_set():
                pages.append(await measured.scrape())

        done = asyncio.Event()
        async with asyncio.TaskGroup() as scrapers:
            for _ in range(2):
                scrapers.create_task(scrape_all())
            async with EngineTraffic(measured.rig.engine, seed=7).running():
                await asyncio.sleep(1.5)
            done.set()
        assert len(pages) > 10
        for page in pages:
            require_one_moment(page)
        assert len({page.text for page in pages}) > 5, "something happened meanwhile"


def require_one_moment(page: Scrape) -> None:
    for pool in SIZES:
        assert sum(units(page, pool).values()) == page.value("tenure_pool_size", tenure_pool=str(pool))
    alive = page.value("tenure_turns_waiting") + page.value("tenure_turns_running")
    ended = sum(page.by("tenure_turns_ended_total", "tenure_turn_outcome").values())
    assert page.value("tenure_turns_accepted_total") - ended == alive
    for pair in PAIRS:
        part, whole = (prometheus_name(find_metric(name)) for name in (pair.part, pair.whole))
        assert page.label_sets(part) == page.label_sets(whole) != set()
    for labels in page.label_sets("tenure_kv_moves_total"):
        assert page.series["tenure_kv_moved_total", labels] >= page.series["tenure_kv_moves_total", labels]
    tokens = sum(page.by("tenure_prompt_tokens_total", "tenure_source").values())
    assert set(page.by("tenure_prompt_context_total", "tenure_source").values()) <= {tokens}
    opened, closed = (
        page.value("tenure_sessions_opened_total"),
        page.by("tenure_sessions_closed_total", "tenure_session_reason"),
    )
    assert opened - sum(closed.values()) == page.value("tenure_sessions_open")


async def test_server_when_it_has_served_then_each_step_has_its_host_time_and_the_warm_up_is_in_nothing() -> None:
    async with running_server(replace(CONFIG, metrics_port=0)) as rig:
        assert rig.metrics is not None
        before = await scrape(rig.metrics)
        assert before.value("tenure_steps_total") == before.value("tenure_generated_tokens_total") == 0
        assert before.value("tenure_step_host_time_seconds_count") == 0
        await rig.collect(rig.client.generate(token_ids=range(20), max_tokens=5, ignore_eos=True))
        page = await scrape(rig.metrics)
        assert page.value("tenure_step_host_time_seconds_count") == page.value("tenure_steps_total") > 0
        assert page.value("tenure_step_device_time_seconds_count") == 0, "the shadow device does not say"
        assert page.value("tenure_generated_tokens_total") == 5


async def test_loop_lag_when_the_loop_is_held_then_the_time_is_in_it() -> None:
    sink = make_sink()
    with metering(sink, port=0) as metrics:
        measuring = asyncio.create_task(measure_lag(sink.lag_measured))
        await asyncio.sleep(0.02)
        time.sleep(0.6)  # noqa: ASYNC251 - what the metric is for
        async with asyncio.timeout(WAIT_S):
            while (await scrape(url_of(metrics))).value("tenure_loop_lag_seconds_count") == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        measuring.cancel()
        page = await scrape(url_of(metrics))
        assert page.value("tenure_loop_lag_seconds_sum") > 0.4


async def test_dropped_when_signals_lose_something_then_by_signal_beside_what_was_sent() -> None:
    with metering(make_sink(losses=7), port=0) as metrics:
        page = await scrape(url_of(metrics))
        assert page.by("tenure_telemetry_dropped_total", "tenure_signal") == {"spans": 7}
        assert page.by("tenure_telemetry_sent_total", "tenure_signal") == {"spans": 3}
        assert page.label_sets("tenure_telemetry_sent_total") == page.label_sets("tenure_telemetry_dropped_total")


def test_provider_when_started_then_nothing_global_is_touched() -> None:
    before = otel.get_meter_provider()
    with metering(make_sink(), port=0):
        assert otel.get_meter_provider() is before


def test_start_when_the_port_is_taken_then_refused_and_nothing_is_left_running() -> None:
    with metering(make_sink(), port=0) as first:
        assert first.endpoint_address is not None
        port = int(first.endpoint_address.rpartition(":")[2])
        settings = TelemetrySettings(otlp_endpoint="http://127.0.0.1:1", metrics_port=port)
        second = Metrics(settings, make_sink(), build_resource({}))
        before = threading.active_count()
        with pytest.raises(MetricsPortTaken):
            second.start()
        assert threading.active_count() == before
        second.close(1.0)


def test_openmetrics_when_asked_for_then_told_and_ended_as_it_has_to_be() -> None:
    with metering(make_sink(), port=0) as metrics:
        page = fetch(url_of(metrics), accept="application/openmetrics-text;version=1.0.0")
        assert page.endswith("# EOF\n")


def test_sdk_when_it_is_disabled_then_no_port_and_one_line_about_it(caplog: pytest.LogCaptureFixture) -> None:
    with metering(
        make_sink(), endpoint="http://127.0.0.1:1", port=0, variables={"OTEL_SDK_DISABLED": "true"}
    ) as metrics:
        assert metrics.endpoint_address is None
    assert [record.message.partition(":")[0] for record in caplog.records] == ["event=metrics_off"]
