"""All that watches a whole server, at its end: whatever a collector does, turns go on and the process is not kept."""

import asyncio
import re
import socket
import time
from dataclasses import replace

import pytest

from services.config import ConfigError, ServeConfig, to_flag
from services.loading import LoadedModel, Progress
from services.server import Announcer, Server
from services.watching import Watching
from tests.kit.otlp_receiver import OtlpReceiver, receiving
from tests.kit.server_rig import CONFIG, ServerRig, byte_tokenizer, running_server, serving
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities

FLUSH_S, SLACK_S = 1.0, 2.0
"""What the rest of the end may take on a busy machine."""
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_METRIC_EXPORT_INTERVAL": "50"}


def watched(endpoint: str) -> ServeConfig:
    return replace(
        CONFIG, otlp_endpoint=endpoint, telemetry_flush_s=FLUSH_S, metrics_port=0, kv_events_port=0, trace_steps=1
    )


async def serve(rig: ServerRig, num_turns: int = 10) -> None:
    for number in range(num_turns):
        assert len(await rig.collect(rig.client.generate(token_ids=[number] * 9, max_tokens=6))) == 6


def behave(collector: OtlpReceiver, how: str) -> None:
    collector.behaviour.is_blocked = how == "blocked"
    collector.behaviour.delay_s = 0.4 if how == "slow" else 0.0
    collector.behaviour.refuse_next = 3 if how == "failing" else 0


@pytest.mark.parametrize("how", ["blocked", "slow", "failing"])
async def test_server_when_its_collector_is_bad_then_turns_are_served_and_the_end_has_its_deadline(how: str) -> None:
    """Spans, metrics and KV events have one deadline together: three of them, one after another, would need thrice."""
    with receiving() as collector:
        behave(collector, how)
        async with running_server(watched(collector.endpoint), environment=QUICK) as rig:
            await serve(rig)
            await asyncio.to_thread(collector.called.wait, 10)
            began_s = time.monotonic()
            rig.stop.set()
            assert await rig.run == 0
            assert time.monotonic() - began_s < FLUSH_S + SLACK_S
            collector.released.set()


async def test_server_when_nobody_is_at_the_collectors_address_then_it_is_told_once_and_served() -> None:
    with receiving() as gone:
        endpoint = gone.endpoint
    async with running_server(watched(endpoint), environment=QUICK) as rig:
        await serve(rig)
        rig.stop.set()
        assert await rig.run == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "none"),
        ("OTEL_RESOURCE_ATTRIBUTES", "no pair"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no pair"),
        ("OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES", "LATE"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
    ],
)
def test_server_when_a_variable_of_opentelemetry_can_not_be_then_refused_by_its_name_before_a_model_is_loaded(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        Server(
            watched("http://127.0.0.1:1"),
            Announcer(lambda _line: None, lambda _done, _what: None),
            environment={name: value},
        )


def taking(name: str, port: int) -> ServeConfig:
    ports = {"metrics_port": 0, "kv_events_port": 0, name: port}
    return replace(CONFIG, **ports)  # type: ignore[arg-type]  # fields of ports


@pytest.mark.parametrize("name", ["metrics_port", "kv_events_port", "kv_events_replay_port"])
async def test_ports_when_taken_then_the_flag_is_named_once_and_no_model_is_loaded(name: str) -> None:
    async def load(_config: ServeConfig, _progress: Progress) -> LoadedModel:
        raise AssertionError("a model is loaded")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = taking(name, port)
        server = Server(config, Announcer(lambda _line: None, lambda _done, _what: None), load)
        with pytest.raises(ConfigError) as caught:
            await server.run(asyncio.Event())
    assert str(caught.value) == f"{to_flag(name)}: 127.0.0.1:{port} can not be bound; is it in use?"


@pytest.mark.parametrize("name", ["metrics_port", "kv_events_port", "kv_events_replay_port"])
async def test_ports_when_taken_only_while_the_model_loads_then_the_flag_is_named_all_the_same(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = taking(name, port).telemetry({})
        watching = Watching(settings)
        watching.attach(shadow_capabilities())
        with pytest.raises(ConfigError) as caught:
            watching.start()
        await watching.stop()
    assert str(caught.value) == f"{to_flag(name)}: 127.0.0.1:{port} can not be bound; is it in use?"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["spans and metrics to {}"]),
        ({"OTEL_METRICS_EXPORTER": "none"}, ["spans to {}"]),
        ({"OTEL_TRACES_EXPORTER": "none"}, ["metrics to {}"]),
        ({"OTEL_SDK_DISABLED": "true"}, []),
    ],
)
async def test_start_when_something_is_sent_then_a_line_says_what_and_where_to_and_no_secret(
    variables: dict[str, str], expected: list[str]
) -> None:
    with receiving() as collector:
        config = replace(CONFIG, otlp_endpoint=collector.endpoint)
        environment = variables | {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cret"}
        async with serving(config, load_shadow, environment) as server:
            told = server.lines.told
        assert [line for line in told if " to http" in line] == [line.format(collector.endpoint) for line in expected]
        assert not any("s3cret" in line for line in told)


async def test_start_when_spans_and_metrics_go_to_two_places_then_a_line_for_each() -> None:
    with receiving() as one, receiving() as other:
        environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": one.endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": other.endpoint,
        }
        async with serving(CONFIG, load_shadow, environment) as server:
            told = [line for line in server.lines.told if " to http" in line]
        assert told == [f"spans to {one.endpoint}", f"metrics to {other.endpoint}"]


async def load_shadow(_config: ServeConfig, _progress: Progress) -> LoadedModel:
    return LoadedModel(ShadowExecutor(shadow_capabilities()), byte_tokenizer(), None, ())
