"""Spans of time, as people write them."""

import argparse
import re

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", re.ASCII)


def read_duration(text: str) -> float:
    """Seconds: of `90s`, `10m`, `1.5h`, or of a number of seconds. Raises ArgumentTypeError unless above 0."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, as in 90s, 10m or 1h")
    duration_s = float(match[1]) * _UNITS_S[match[2]]
    if duration_s <= 0:
        raise argparse.ArgumentTypeError(f"{text} is no time at all")
    return duration_s
