"""The server's configuration: one frozen set of values, checked in one gate, each named by its flag."""

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from engine.core.config import CoreConfig
from engine.executor.model_files import MODELS, is_there
from engine.executor.pool_size import PoolPolicy
from engine.executor.protocol import Capabilities
from engine.runtime.config import RuntimeConfig
from engine.runtime.vitals import WatchdogConfig
from telemetry.export.address import read_address
from telemetry.settings import Encoding, KvFeedSettings, TelemetrySettings

PAGE_SIZE_MAX = 1024
"""Whole pages are held for what fills a part of them: larger ones only waste memory."""
CONTEXT_LEN_MIN = 2
"""A token to read and one to write."""


class ConfigError(Exception):
    """A flag has a value that can not be. The message begins with the flag."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `tenure serve` can be told. Raises ConfigError on a bad value. Defaults suit a laptop."""

    model: Path | None = None
    """A GGUF file, a Hugging Face directory or the name of a packaged model; None is the embedded one."""
    host: str = "127.0.0.1"
    port: int = 50051
    """0 takes any free port, and says which."""
    health_port: int | None = None
    """For probes alone; 0 takes any free port, and says which. None is no such port."""
    insecure_bind: bool = False
    page_size: int = 16
    pool_tokens: int | None = None
    """None sizes the pool by what is free, as the next two: `engine.executor.pool_size` says how."""
    swa_tokens: int | None = None
    """Of the pool of sliding windows."""
    state_slots: int | None = None
    """Of the pool of recurrent states, the padding slot not counted."""
    state_interval: int = 256
    memory_fraction: float = 0.5
    """How much of what is free once the model is loaded the pools may take."""
    rows: int = 64
    context_len: int = 2048
    chunk_tokens: int = 128
    step_tokens: int = 256
    running_max: int = 16
    waiting_max: int = 256
    threads: int = 1
    sessions_max: int = 1024
    idle_timeout_s: float = 3600.0
    streaming_sessions: bool = True
    prefix_cache: bool = True
    unread_tokens_max: int = 4096
    detach_grace_s: float = 15.0
    overlap: bool = True
    draft_tokens_max: int = 8
    history_tokens_max: int = 32 * 1024 * 1024
    reflection: bool = True
    full_check_steps: int = 64
    drain_s: float = 0.0
    watchdog_loading_s: float = 600.0
    watchdog_compiling_s: float = 600.0
    watchdog_warming_s: float = 120.0
    watchdog_prefill_s: float = 60.0
    watchdog_decode_s: float = 30.0
    watchdog_idle_s: float = 10.0
    watchdog_failures: int = 8
    watchdog_exit_s: float = 15.0
    fault_injection: bool = False
    otlp_endpoint: str | None = None
    """None takes `OTEL_EXPORTER_OTLP_ENDPOINT`, and sends nothing without it."""
    trace_steps: int = 64
    telemetry_flush_s: float = 5.0
    metrics_port: int | None = None
    kv_events_port: int | None = None
    kv_events_replay_port: int | None = None
    """None is the port behind `kv_events_port`."""
    kv_events_host: str = "127.0.0.1"
    kv_events_topic: str = ""
    kv_events_encoding: str = "map"
    kv_events_salted: bool = True

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(to_flag(name), f"must be at least 1, not {getattr(self, name)}")
        self._require_ports()
        self._require_sizes()
        self._require_telemetry()
        for name in _ABOVE_0_S:
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(to_flag(name), f"must be above 0, not {getattr(self, name)}")
        for name in _AT_LEAST_0_S:
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(to_flag(name), f"must be at least 0, not {getattr(self, name)}")
        if self.model is not None and not is_there(self.model):
            known = ", ".join(sorted(MODELS))
            raise ConfigError("--model", f"there is no file or directory {self.model}; known names are {known}")
        if not is_loopback(self.host) and not self.insecure_bind:
            raise ConfigError(
                "--host",
                f"{self.host} can be reached from other machines, and there is no access control yet: "
                "bind to 127.0.0.1, or say --insecure-bind if your network keeps strangers out",
            )
        if self.fault_injection and not is_loopback(self.host):
            raise ConfigError(
                "--fault-injection",
                f"{self.host} can be reached from other machines, and whoever calls may break the server: "
                "only for a --host on loopback, as 127.0.0.1",
            )

    def _require_ports(self) -> None:
        if self.kv_events_port == 65535 and self.kv_events_replay_port is None:
            raise ConfigError("--kv-events-port", "must be below 65535, or --kv-events-replay-port be given")
        taken: dict[int, str] = {}
        ports = {name: getattr(self, name) for name in ("port", "health_port", "metrics_port", "kv_events_port")}
        for name, port in (ports | {"kv_events_replay_port": self._replay_port}).items():
            if port is None:
                continue
            if not 0 <= port <= 65535:
                raise ConfigError(to_flag(name), f"must be between 0 and 65535, not {port}")
            if port and port in taken:
                raise ConfigError(to_flag(name), f"must be another one than {taken[port]} {port}")
            taken[port] = to_flag(name)

    def _require_telemetry(self) -> None:
        if self.trace_steps < 0:
            raise ConfigError("--trace-steps", f"must be at least 0, not {self.trace_steps}")
        for name in _OF_KV_EVENTS:
            if self.kv_events_port is None and getattr(self, name) != _DEFAULTS[name]:
                raise ConfigError(to_flag(name), "does nothing without --kv-events-port")
        if self.kv_events_encoding not in tuple(Encoding):
            known = ", ".join(Encoding)
            raise ConfigError("--kv-events-encoding", f"must be one of {known}, not {self.kv_events_encoding!r}")
        if not self.kv_events_topic.isprintable():
            raise ConfigError("--kv-events-topic", "must have no control characters")
        if self.otlp_endpoint is not None:
            try:
                read_address(self.otlp_endpoint, needs_scheme=True)
            except ValueError as error:
                raise ConfigError("--otlp-endpoint", str(error)) from None
        if not is_loopback(self.kv_events_host) and not self.insecure_bind:
            raise ConfigError(
                "--kv-events-host",
                f"{self.kv_events_host} can be reached from other machines, and the stream tells the token ids of all "
                "prompts: use 127.0.0.1, or say --insecure-bind if your network keeps strangers out",
            )

    def _require_sizes(self) -> None:
        """What `CoreConfig` and the first turn need, said before a model is loaded."""
        if self.context_len < CONTEXT_LEN_MIN:
            raise ConfigError(
                "--context-len",
                f"must be at least {CONTEXT_LEN_MIN}, a token to read and one to write, not {self.context_len}",
            )
        if self.page_size > PAGE_SIZE_MAX:
            raise ConfigError("--page-size", f"must be at most {PAGE_SIZE_MAX} tokens, not {self.page_size}")
        if not 0 < self.memory_fraction <= 1:
            raise ConfigError("--memory-fraction", f"must be above 0 and at most 1, not {self.memory_fraction}")
        for name in ("pool_tokens", "swa_tokens"):
            tokens = getattr(self, name)
            if tokens is not None:
                self._require_pool(to_flag(name), tokens)
        if self.state_slots is not None and self.state_slots < 1:
            raise ConfigError("--state-slots", f"must be at least 1, not {self.state_slots}")
        if self.chunk_tokens > self.step_tokens:
            raise ConfigError(
                "--chunk-tokens", f"must be at most --step-tokens {self.step_tokens}, not {self.chunk_tokens}"
            )
        at_once = min(self.running_max, self.rows)
        if self.step_tokens < at_once:
            raise ConfigError(
                "--step-tokens",
                f"must be at least {at_once}, not {self.step_tokens}: so many requests may run at once (--running-max "
                f"{self.running_max}, --rows {self.rows}), and each of them advances in every step",
            )

    def _require_pool(self, flag: str, tokens: int) -> None:
        if tokens < CONTEXT_LEN_MIN:
            raise ConfigError(flag, f"must be at least {CONTEXT_LEN_MIN}, not {tokens}")
        if tokens % self.page_size:
            raise ConfigError(
                f"{flag} and --page-size",
                f"the pool has to be made of whole pages, and {tokens} is not a multiple of {self.page_size}",
            )

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    def runtime(self) -> RuntimeConfig:
        return RuntimeConfig(
            unread_ids_max=self.unread_tokens_max,
            full_check_steps=self.full_check_steps,
            detach_grace_s=self.detach_grace_s,
        )

    def watchdog(self) -> WatchdogConfig:
        return WatchdogConfig(
            loading_s=self.watchdog_loading_s,
            compiling_s=self.watchdog_compiling_s,
            warming_s=self.watchdog_warming_s,
            prefill_s=self.watchdog_prefill_s,
            decode_s=self.watchdog_decode_s,
            idle_s=self.watchdog_idle_s,
            failures_max=self.watchdog_failures,
            exit_s=self.watchdog_exit_s,
        )

    def features(self, *, has_chat: bool, has_states: bool = False) -> tuple[str, ...]:
        """What a server of this configuration can do, for programs. `has_states`: the model has recurrent layers."""
        choices = {
            "draft_tokens": not has_states,
            "chat": has_chat,
            "streaming_sessions": self.streaming_sessions,
            "prefix_cache": self.prefix_cache,
        }
        return (*_FEATURES, *(name for name, is_on in choices.items() if is_on))

    @property
    def _replay_port(self) -> int | None:
        """That of KV events, or the one behind theirs."""
        if self.kv_events_replay_port is not None or not self.kv_events_port:
            return self.kv_events_port if self.kv_events_replay_port is None else self.kv_events_replay_port
        return self.kv_events_port + 1

    def telemetry(self, environment: Mapping[str, str]) -> TelemetrySettings:
        """`environment`: the process's; what begins with `OTEL_` counts."""
        feed = None
        if self.kv_events_port is not None and self._replay_port is not None:
            feed = KvFeedSettings(
                host=self.kv_events_host,
                port=self.kv_events_port,
                replay_port=self._replay_port,
                topic=self.kv_events_topic,
                encoding=Encoding(self.kv_events_encoding),
                publishes_salted=self.kv_events_salted,
            )
        return TelemetrySettings(
            otlp_endpoint=self.otlp_endpoint,
            trace_steps=self.trace_steps,
            flush_s=self.telemetry_flush_s,
            metrics_host=self.host,
            metrics_port=self.metrics_port,
            kv_feed=feed,
            environment={name: value for name, value in environment.items() if name.startswith("OTEL_")},
        )

    @property
    def in_flight_max(self) -> int:
        """Plans that may be out at once."""
        return 2 if self.overlap else 1

    def pools(self) -> PoolPolicy:
        """How the pools are to be sized."""
        return PoolPolicy(
            page_size=self.page_size,
            pool_tokens=self.pool_tokens,
            memory_fraction=self.memory_fraction,
            running_max=self.running_max,
            context_len=self.context_len,
            num_rows=self.rows,
            swa_tokens=self.swa_tokens,
            state_slots=self.state_slots,
            chunk_tokens=self.chunk_tokens,
            in_flight_max=self.in_flight_max,
            draft_tokens_max=self.draft_tokens_max,
        )

    def core(self, executor: Capabilities, eos_ids: tuple[int, ...]) -> CoreConfig:
        """The core's limits over the pools of an executor, for a model with these end-of-sequence ids."""
        return CoreConfig(
            page_size=self.page_size,
            pool_pages=executor.pool_pages,
            num_rows=self.rows + 1,
            context_len=min(self.context_len, executor.context_len),
            vocab_size=executor.vocab_size,
            eos_ids=eos_ids,
            chunk_tokens=self.chunk_tokens,
            step_tokens=self.step_tokens,
            running_max=self.running_max,
            waiting_max=self.waiting_max,
            sessions_max=self.sessions_max,
            idle_timeout_s=self.idle_timeout_s,
            streaming_sessions=self.streaming_sessions,
            prefix_cache=self.prefix_cache,
            in_flight_max=self.in_flight_max,
            draft_tokens_max=self.draft_tokens_max,
            history_tokens_max=self.history_tokens_max,
            window=executor.window,
            swa_pages=executor.swa_pages,
            state_slots=executor.state_slots,
            state_interval=self.state_interval,
        )

    def effective(self) -> dict[str, str]:
        """Every setting as it is in force, for people."""
        return {name: _ABSENT[name] if value is None else _show(value) for name, value in asdict(self).items()}


_DEFAULTS = {field.name: field.default for field in fields(ServeConfig)}
_OF_KV_EVENTS = (
    "kv_events_replay_port",
    "kv_events_host",
    "kv_events_topic",
    "kv_events_encoding",
    "kv_events_salted",
)
"""Settings that only matter with `kv_events_port`."""
_FEATURES = ("sampling", "stop_strings", "resume", "fork", "truncate", "replace", "keep_on_abort")
"""What every server can do."""

_ABSENT = {
    "model": "embedded",
    "pool_tokens": "auto",
    "swa_tokens": "auto",
    "state_slots": "auto",
    "health_port": "none",
    "otlp_endpoint": "none",
    "metrics_port": "none",
    "kv_events_port": "none",
    "kv_events_replay_port": "next",
}
"""What people are told of a setting that is None."""

_ABOVE_0_S = (
    "idle_timeout_s",
    "watchdog_loading_s",
    "watchdog_compiling_s",
    "watchdog_warming_s",
    "watchdog_prefill_s",
    "watchdog_decode_s",
    "watchdog_idle_s",
)
_AT_LEAST_0_S = ("drain_s", "detach_grace_s", "watchdog_exit_s", "telemetry_flush_s")

_COUNTS = (
    "page_size",
    "state_interval",
    "rows",
    "context_len",
    "chunk_tokens",
    "step_tokens",
    "running_max",
    "waiting_max",
    "threads",
    "sessions_max",
    "unread_tokens_max",
    "draft_tokens_max",
    "history_tokens_max",
    "full_check_steps",
    "watchdog_failures",
)


def to_flag(name: str) -> str:
    """Field of `ServeConfig` → its flag."""
    return "--" + name.replace("_", "-")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Other names than localhost are taken to be reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
