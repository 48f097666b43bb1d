"""Limits and intervals of the runtime, validated in one gate, then frozen."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """The runtime's limits. Raises ValueError, naming the field, on a bad value."""

    inbox_max: int = 1024
    """Commands that may wait for the loop; aborts are not counted, there is at most one a live turn."""
    unread_ids_max: int = 4096
    """Generated ids that may wait for a turn's reader; beyond them the turn is aborted as SLOW_READER."""
    full_check_steps: int = 64
    """Every so many steps the books are checked page by page (1 in tests); their counters every step."""
    expire_interval_s: float = 0.25
    """How often idle sessions are looked at, busy or not."""
    stop_timeout_s: float = 4.0
    """Most time that `stop` takes after its drain time."""
    warm_up: bool = True
    """Runs one small turn before the engine says that it serves."""

    def __post_init__(self) -> None:
        for name in ("inbox_max", "unread_ids_max", "full_check_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("expire_interval_s", "stop_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
