"""Limits and intervals of the runtime, validated in one gate, then frozen."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """The runtime's limits. Raises ValueError, naming the field, on a bad value."""

    inbox_max: int = 1024
    """Commands that may wait for the loop; aborts are not counted, there is at most one a live turn."""
    unread_ids_max: int = 4096
    """Generated ids that may wait for a reader; beyond them its stream is ended as SLOW_READER."""
    detach_grace_s: float = 15.0
    """How long a turn with a content runs on without a reader, before it is aborted as DISCONNECT."""
    session_records_max: int = 8
    """Finished turns of a session whose streams can be replayed."""
    stateless_record_s: float = 60.0
    """How long those of turns without a session can be."""
    record_bytes_max: int = 64 * 1024 * 1024
    """Most memory for all of them; the oldest go first."""
    full_check_steps: int = 64
    """Every so many steps the books of small pools are checked page by page (1 in tests); of large ones some owners at
    every step, whatever this says. Their counters every step."""
    expire_interval_s: float = 0.25
    """How often idle sessions are looked at, busy or not."""
    stop_timeout_s: float = 4.0
    """Most time that `stop` takes after its drain time."""
    warm_up: bool = True
    """Runs one small turn before the engine says that it serves."""

    def __post_init__(self) -> None:
        for name in ("inbox_max", "unread_ids_max", "full_check_steps", "session_records_max", "record_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("expire_interval_s", "stop_timeout_s", "stateless_record_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.detach_grace_s >= 0:
            raise ValueError(f"detach_grace_s must be at least 0, not {self.detach_grace_s}")
