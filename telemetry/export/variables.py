"""The process's `OTEL_*` variables, read one by one: what can not be read is refused by its name."""

from collections.abc import Mapping

_MS = 1000.0


class VariableError(ValueError):
    """A variable of the environment has a value that can not be."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


def read_text(environment: Mapping[str, str], *names: str) -> str | None:
    """The value of the first one that is set. An empty one counts as not set, as OpenTelemetry has it."""
    return next((value for name in names if (value := environment.get(name, "").strip())), None)


def read_flag(environment: Mapping[str, str], name: str) -> bool:
    """Whether it says `true`, in small or large letters. All else is false, as OpenTelemetry has it."""
    return (read_text(environment, name) or "").lower() == "true"


def read_count(environment: Mapping[str, str], name: str, default: int) -> int:
    """A whole number of at least 1. Raises VariableError."""
    text = read_text(environment, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise VariableError(name, f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def read_ms(environment: Mapping[str, str], name: str, default_s: float) -> float:
    """Seconds, of a whole number of milliseconds of at least 1. Raises VariableError."""
    text = read_text(environment, name)
    if text is None:
        return default_s
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise VariableError(name, f"must be a whole number of milliseconds of at least 1, not {text!r}")
    return int(text) / _MS


def read_seconds(environment: Mapping[str, str], *names: str, default_s: float) -> float:
    """Of the first one that is set: a number above 0. Raises VariableError."""
    name = next((name for name in names if environment.get(name, "").strip()), None)
    if name is None:
        return default_s
    text = environment[name].strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise VariableError(name, f"must be a number of seconds above 0, not {text!r}")
    return seconds
