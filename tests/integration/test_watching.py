"""All that watches a whole server, at its end: whatever a collector does, turns go on and the process is not kept."""

import asyncio
import re
import time
from dataclasses import replace

import pytest

from services.config import ConfigError, ServeConfig
from services.server import Announcer, Server
from tests.kit.otlp_receiver import OtlpReceiver, receiving
from tests.kit.server_rig import CONFIG, ServerRig, running_server

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
    ],
)
def test_server_when_a_variable_of_opentelemetry_can_not_be_then_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        Server(
            watched("http://127.0.0.1:1"),
            Announcer(lambda _line: None, lambda _done, _what: None),
            environment={name: value},
        )


async def test_ports_when_taken_then_the_server_does_not_start_and_names_the_flag() -> None:
    async with running_server(replace(CONFIG, metrics_port=0)) as rig:
        assert rig.metrics is not None
        port = int(rig.metrics.rpartition(":")[2].partition("/")[0])
        with pytest.raises(AssertionError, match="--metrics-port"):
            async with running_server(replace(CONFIG, metrics_port=port)):
                pass
