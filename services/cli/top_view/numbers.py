"""Numbers as they are shown: short, and as wide from one second to the next as can be."""

_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86400


def format_count(count: int) -> str:
    return f"{count:,}"


def format_rate(value: float | None) -> str:
    """One digit behind the point below 100, none for what is counted whole; `-` for nothing that could be measured."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return format_count(value)
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def format_span(span_s: float) -> str:
    """As in `12 s`, `3 min`, `2 h 5 min` or `4 d 2 h`."""
    whole_s = max(0, int(span_s))
    if whole_s < _MINUTE_S:
        return f"{whole_s} s"
    if whole_s < _HOUR_S:
        return f"{whole_s // _MINUTE_S} min"
    if whole_s < _DAY_S:
        return f"{whole_s // _HOUR_S} h {whole_s % _HOUR_S // _MINUTE_S} min"
    return f"{whole_s // _DAY_S} d {whole_s % _DAY_S // _HOUR_S} h"
