"""The server's gate: a bad value is named by its flag, and every flag has its help."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from engine.runtime.vitals import Phase, WatchdogConfig
from services.cli.main import build_parser
from services.config import ConfigError, ServeConfig, is_loopback, join_address, to_flag
from tests.kit.shadow_executor import shadow_capabilities

CAPABILITIES = shadow_capabilities(pool_pages=9, context_len=100, vocab_size=50)
HYBRID = replace(CAPABILITIES, window=4, swa_pages=90, state_slots=11)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--page-size", "0"], "--page-size"),
        (["--page-size", "1025"], "--page-size"),
        (["--pool-tokens", "100"], "--pool-tokens and --page-size"),
        (["--page-size", "7", "--pool-tokens", "64"], "--pool-tokens and --page-size"),
        (["--pool-tokens", "0"], "--pool-tokens"),
        (["--pool-tokens", "-16"], "--pool-tokens"),
        (["--page-size", "1", "--pool-tokens", "1"], "--pool-tokens"),
        (["--swa-tokens", "100"], "--swa-tokens and --page-size"),
        (["--swa-tokens", "0"], "--swa-tokens"),
        (["--state-slots", "0"], "--state-slots"),
        (["--state-interval", "0"], "--state-interval"),
        (["--context-len", "1"], "--context-len"),
        (["--chunk-tokens", "300"], "--chunk-tokens"),
        (["--chunk-tokens", "8", "--step-tokens", "8"], "--step-tokens"),
        (["--running-max", "300", "--rows", "300"], "--step-tokens"),
        (["--port", "65536"], "--port"),
        (["--port", "-1"], "--port"),
        (["--health-port", "65536"], "--health-port"),
        (["--health-port", "-1"], "--health-port"),
        (["--health-port", "7000", "--port", "7000"], "--health-port"),
        (["--memory-fraction", "0"], "--memory-fraction"),
        (["--memory-fraction", "1.01"], "--memory-fraction"),
        (["--memory-fraction", "nan"], "--memory-fraction"),
        (["--watchdog-loading-s", "0"], "--watchdog-loading-s"),
        (["--watchdog-compiling-s", "-1"], "--watchdog-compiling-s"),
        (["--watchdog-warming-s", "inf"], "--watchdog-warming-s"),
        (["--watchdog-prefill-s", "nan"], "--watchdog-prefill-s"),
        (["--watchdog-decode-s", "0"], "--watchdog-decode-s"),
        (["--watchdog-idle-s", "0"], "--watchdog-idle-s"),
        (["--watchdog-failures", "0"], "--watchdog-failures"),
        (["--watchdog-exit-s", "-1"], "--watchdog-exit-s"),
        (["--threads", "0"], "--threads"),
        (["--idle-timeout-s", "nan"], "--idle-timeout-s"),
        (["--drain-s", "-1"], "--drain-s"),
        (["--detach-grace-s", "-0.1"], "--detach-grace-s"),
        (["--detach-grace-s", "inf"], "--detach-grace-s"),
        (["--model", "/nowhere/model.gguf"], "--model"),
        (["--host", "192.0.2.1"], "--host"),
        (["--host", "example.org"], "--host"),
        (["--fault-injection", "--host", "192.0.2.1", "--insecure-bind"], "--fault-injection"),
        (["--fault-injection", "--host", "::", "--insecure-bind"], "--fault-injection"),
        (["--draft-tokens-max", "0"], "--draft-tokens-max"),
        (["--history-tokens-max", "0"], "--history-tokens-max"),
    ],
)
def test_serve_config_when_a_value_can_not_be_then_its_flag_is_named(arguments: list[str], flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)
    assert caught.value.flag == flag
    assert str(caught.value).startswith(f"{flag}: ")


def parse(*arguments: str) -> ServeConfig:
    parsed = build_parser().parse_args(["serve", *arguments])
    return ServeConfig(**{field.name: getattr(parsed, field.name) for field in fields(ServeConfig)})


def test_serve_flags_when_none_is_given_then_the_defaults() -> None:
    assert parse() == ServeConfig()


def test_runtime_config_when_derived_then_the_flags_are_in_it() -> None:
    runtime = parse("--detach-grace-s", "0", "--unread-tokens-max", "7", "--full-check-steps", "3").runtime()
    assert (runtime.detach_grace_s, runtime.unread_ids_max, runtime.full_check_steps) == (0.0, 7, 3)


def test_features_when_parts_are_off_then_not_among_them() -> None:
    assert set(parse().features(has_chat=True)) - set(parse().features(has_chat=False)) == {"chat"}
    off = parse("--no-streaming-sessions", "--no-prefix-cache", "--no-reflection")
    on = set(parse().features(has_chat=False))
    assert on - set(off.features(has_chat=False)) == {"streaming_sessions", "prefix_cache"}
    assert {"fork", "truncate", "replace", "draft_tokens"} <= set(off.features(has_chat=False))
    assert not off.reflection


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_fault_injection_when_on_loopback_then_on_and_else_off(host: str) -> None:
    assert parse("--fault-injection", "--host", host).fault_injection
    assert not parse("--host", host).fault_injection


@pytest.mark.parametrize(("arguments", "depth"), [((), 2), (("--overlap",), 2), (("--no-overlap",), 1)])
def test_overlap_when_on_or_off_then_two_plans_or_one(arguments: tuple[str, ...], depth: int) -> None:
    core = parse(*arguments).core(CAPABILITIES, ())
    assert core.in_flight_max == depth


def test_core_config_when_limits_are_given_then_they_are_in_force() -> None:
    config = parse("--draft-tokens-max", "3", "--history-tokens-max", "77")
    core = config.core(CAPABILITIES, ())
    assert (core.draft_tokens_max, core.history_tokens_max) == (3, 77)


def test_core_config_when_the_executor_has_windows_and_states_then_so_has_the_core() -> None:
    core = parse("--state-interval", "40").core(HYBRID, ())
    assert (core.window, core.swa_pages, core.state_slots, core.state_interval) == (4, 90, 11, 40)
    assert parse().core(HYBRID, ()).state_interval == 256
    plain = parse().core(CAPABILITIES, ())
    assert (plain.window, plain.swa_pages, plain.state_slots) == (None, 0, 0)


def test_pools_when_flags_are_given_then_in_the_policy() -> None:
    policy = parse(
        "--swa-tokens", "64", "--state-slots", "9", "--chunk-tokens", "32", "--draft-tokens-max", "3"
    ).pools()
    assert (policy.swa_tokens, policy.state_slots, policy.chunk_tokens, policy.draft_tokens_max) == (64, 9, 32, 3)
    assert (parse().pools().swa_tokens, parse().pools().state_slots) == (None, None)
    assert (parse("--overlap").pools().in_flight_max, parse("--no-overlap").pools().in_flight_max) == (2, 1)


def test_features_when_the_model_has_states_then_no_drafts() -> None:
    with_states, without = (set(parse().features(has_chat=False, has_states=has)) for has in (True, False))
    assert without - with_states == {"draft_tokens"}


def test_serve_flags_when_given_then_in_force() -> None:
    config = parse("--port", "0", "--no-prefix-cache", "--host", "192.0.2.1", "--insecure-bind", "--pool-tokens", "64")
    assert (config.port, config.prefix_cache, config.host, config.pool_tokens) == (0, False, "192.0.2.1", 64)


@pytest.mark.parametrize("field", [field.name for field in fields(ServeConfig)])
def test_serve_help_when_asked_then_every_setting_is_explained(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    assert to_flag(field) in capsys.readouterr().out


def test_core_config_when_derived_then_padding_is_added_and_context_cut_to_the_model() -> None:
    core = ServeConfig(page_size=16, rows=3, context_len=500).core(replace(CAPABILITIES, pool_pages=5), (2,))
    assert (core.pool_pages, core.num_rows, core.context_len, core.eos_ids) == (5, 4, 100, (2,))
    assert core.pool_tokens == 64


def test_watchdog_when_derived_then_each_flag_is_in_its_place() -> None:
    assert ServeConfig().watchdog() == WatchdogConfig()
    phases = ("loading", "compiling", "warming", "prefill", "decode", "idle")
    flags = [text for number, phase in enumerate(phases, 1) for text in (f"--watchdog-{phase}-s", str(number))]
    watchdog = parse(*flags, "--watchdog-failures", "7", "--watchdog-exit-s", "0").watchdog()
    assert [watchdog.limit_s(Phase(phase)) for phase in phases] == [1, 2, 3, 4, 5, 6]
    assert (watchdog.failures_max, watchdog.exit_s) == (7, 0.0)


def test_settings_when_absent_by_default_then_given_as_numbers() -> None:
    config = parse("--pool-tokens", "64", "--health-port", "0", "--memory-fraction", "1")
    assert (config.pool_tokens, config.health_port, config.memory_fraction) == (64, 0, 1.0)
    assert parse("--health-port", "0", "--port", "0").health_port == 0
    assert (parse().pool_tokens, parse().health_port) == (None, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--context-len", "2"],
        ["--page-size", "1", "--pool-tokens", "2"],
        ["--page-size", "1024"],
        ["--step-tokens", "8", "--chunk-tokens", "8", "--running-max", "8"],
        ["--step-tokens", "8", "--chunk-tokens", "8", "--rows", "8"],
        ["--chunk-tokens", "256"],
    ],
)
def test_serve_config_when_at_its_limits_then_the_core_takes_it(arguments: list[str]) -> None:
    core = parse(*arguments).core(replace(CAPABILITIES, context_len=2048), ())
    assert core.step_tokens >= core.chunk_tokens


def test_effective_when_printed_then_every_setting_is_there() -> None:
    effective = ServeConfig(model=None).effective()
    assert list(effective) == [field.name for field in fields(ServeConfig)]
    assert (effective["model"], effective["prefix_cache"]) == ("embedded", "yes")
    assert {effective[name] for name in ("pool_tokens", "swa_tokens", "state_slots")} == {"auto"}
    assert effective["health_port"] == "none"
    given = ServeConfig(pool_tokens=64, health_port=0).effective()
    assert (given["pool_tokens"], given["health_port"]) == ("64", "0")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("192.0.2.1", False), ("::", False)],
)
def test_is_loopback_when_asked_then_right(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_join_address_when_ipv6_then_brackets() -> None:
    assert (join_address("::1", 5), join_address("127.0.0.1", 5)) == ("[::1]:5", "127.0.0.1:5")


def test_model_when_the_file_is_there_then_taken(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.touch()
    assert ServeConfig(model=path).model == path


def test_serve_help_when_asked_then_each_flag_of_telemetry_says_what_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    told = capsys.readouterr().out
    for shape in ("otlp-endpoint URL", "kv-events-topic TOPIC", "kv-events-encoding {map,array}"):
        assert f"--{shape}" in told
    assert "(default: )" not in told


def test_encoding_when_unknown_then_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--kv-events-encoding", "json"])
    assert "choose from 'map', 'array'" in capsys.readouterr().err
