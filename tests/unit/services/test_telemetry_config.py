"""Flags of telemetry: each reaches the settings that it is for, and what can not be is refused by its name."""

import pytest

from services.config import ConfigError, ServeConfig
from telemetry.settings import Encoding, KvFeedSettings, TelemetrySettings


def test_telemetry_when_nothing_is_asked_for_then_nothing_is_sent_or_offered() -> None:
    assert ServeConfig().telemetry({}) == TelemetrySettings()


def test_telemetry_when_every_flag_is_given_then_each_reaches_its_setting() -> None:
    config = ServeConfig(
        otlp_endpoint="http://127.0.0.1:4317",
        trace_steps=7,
        telemetry_flush_s=1.5,
        metrics_port=9464,
        kv_events_port=5557,
        kv_events_replay_port=6000,
        kv_events_host="localhost",
        kv_events_topic="kv@pod@model",
        kv_events_encoding="array",
        kv_events_salted=False,
    )
    feed = KvFeedSettings("localhost", 5557, 6000, "kv@pod@model", Encoding.ARRAY, publishes_salted=False)
    assert config.telemetry({}) == TelemetrySettings(
        otlp_endpoint="http://127.0.0.1:4317",
        trace_steps=7,
        flush_s=1.5,
        metrics_host="127.0.0.1",
        metrics_port=9464,
        kv_feed=feed,
    )


@pytest.mark.parametrize(("port", "replay_port", "expected"), [(5557, None, 5558), (0, None, 0), (5557, 0, 0)])
def test_replay_port_when_not_given_then_the_next_one(port: int, replay_port: int | None, expected: int) -> None:
    feed = ServeConfig(kv_events_port=port, kv_events_replay_port=replay_port).telemetry({}).kv_feed
    assert feed is not None
    assert feed.replay_port == expected


def test_environment_when_handed_on_then_only_what_is_opentelemetrys() -> None:
    told = {"OTEL_SERVICE_NAME": "mine", "HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "x"}
    assert ServeConfig().telemetry(told).environment == {"OTEL_SERVICE_NAME": "mine"}


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"trace_steps": -1}, "--trace-steps"),
        ({"telemetry_flush_s": -0.1}, "--telemetry-flush-s"),
        ({"telemetry_flush_s": float("nan")}, "--telemetry-flush-s"),
        ({"otlp_endpoint": "127.0.0.1:4317"}, "--otlp-endpoint"),
        ({"otlp_endpoint": ""}, "--otlp-endpoint"),
        ({"otlp_endpoint": "http://127.0.0.1"}, "--otlp-endpoint"),
        ({"otlp_endpoint": "http://127.0.0.1:99999"}, "--otlp-endpoint"),
        ({"otlp_endpoint": "http://127.0.0.1:4318/v1/traces"}, "--otlp-endpoint"),
        ({"kv_events_port": 1, "kv_events_topic": "kv\n@pod"}, "--kv-events-topic"),
        ({"metrics_port": 65536}, "--metrics-port"),
        ({"metrics_port": 50051}, "--metrics-port"),
        ({"kv_events_port": -1}, "--kv-events-port"),
        ({"kv_events_port": 65535}, "--kv-events-port"),
        ({"kv_events_port": 5557, "kv_events_replay_port": 5557}, "--kv-events-replay-port"),
        ({"kv_events_port": 5557, "metrics_port": 5558}, "--kv-events-replay-port"),
        ({"kv_events_port": 1, "kv_events_encoding": "json"}, "--kv-events-encoding"),
        ({"kv_events_port": 1, "kv_events_host": "0.0.0.0"}, "--kv-events-host"),  # noqa: S104 - is refused
        ({"kv_events_replay_port": 6000}, "--kv-events-replay-port"),
        ({"kv_events_topic": "kv"}, "--kv-events-topic"),
        ({"kv_events_salted": False}, "--kv-events-salted"),
    ],
)
def test_flag_when_its_value_can_not_be_then_refused_by_name(values: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeConfig(**values)  # type: ignore[arg-type]  # values of any field
    assert caught.value.flag == flag


def test_kv_events_host_when_reachable_and_the_bind_is_called_insecure_then_taken() -> None:
    config = ServeConfig(kv_events_port=5557, kv_events_host="0.0.0.0", insecure_bind=True)  # noqa: S104 - is taken
    feed = config.telemetry({}).kv_feed
    assert feed is not None
    assert feed.host == "0.0.0.0"  # noqa: S104 - is taken


def test_otlp_endpoint_when_it_holds_a_password_then_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint: must have no user and no password") as caught:
        ServeConfig(otlp_endpoint="http://me:s3cret@127.0.0.1:4317")
    assert "s3cret" not in str(caught.value)
