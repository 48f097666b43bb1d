"""The process's `OTEL_*` variables, read one by one: what can not be read is refused by its name."""

from collections.abc import Mapping

_MS = 1000.0
COUNT_MAX = 10_000_000
MS_MAX = 86_400_000
"""A day: what waits for longer never comes."""
_DIGITS_MAX = 40


class VariableError(ValueError):
    """A variable of the environment has a value that can not be."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


def read_text(environment: Mapping[str, str], *names: str) -> str | None:
    """The value of the first one that is set. An empty one counts as not set, as OpenTelemetry has it."""
    name = read_name(environment, *names)
    return None if name is None else environment[name].strip()


def read_name(environment: Mapping[str, str], *names: str) -> str | None:
    """The first one that is set, as `read_text` has it."""
    return next((name for name in names if environment.get(name, "").strip()), None)


def read_flag(environment: Mapping[str, str], name: str) -> bool:
    """Whether it says `true`, in small or large letters. All else is false, as OpenTelemetry has it."""
    return (read_text(environment, name) or "").lower() == "true"


def read_count(environment: Mapping[str, str], name: str, default: int) -> int:
    """A whole number of at least 1. Raises VariableError."""
    text = read_text(environment, name)
    if text is None:
        return default
    return _read_whole(name, text, COUNT_MAX, "a whole number")


def read_ms(environment: Mapping[str, str], name: str, default_s: float) -> float:
    """Seconds, of a whole number of milliseconds of at least 1. Raises VariableError."""
    text = read_text(environment, name)
    if text is None:
        return default_s
    return _read_whole(name, text, MS_MAX, "a whole number of milliseconds") / _MS


def _read_whole(name: str, text: str, largest: int, what: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    if not (is_number and 1 <= int(text) <= largest):
        shown = text if len(text) <= _DIGITS_MAX else f"{text[:_DIGITS_MAX]}..."
        raise VariableError(name, f"must be {what} from 1 to {largest}, not {shown!r}")
    return int(text)


def read_seconds(environment: Mapping[str, str], *names: str, default_s: float) -> float:
    """Of the first one that is set: a number above 0. Raises VariableError."""
    name = read_name(environment, *names)
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
