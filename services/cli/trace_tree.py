"""The tree of one trace: a line a span, with a bar where it lies in time, and what it has to tell underneath."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from services.cli.top_view.inert import fit, tame
from services.cli.trace_facts import describe_event, describe_link, describe_turn, format_ms, list_facts
from services.client.traces import Span, Trace
from telemetry.names import Attr, SpanName

PLAIN_WIDTH = 100
"""Of a pipe or a file."""
_NAME_MIN, _NAME_MAX = 12, 34
_BAR_MIN, _TIME, _STATUS, _GAPS = 8, 10, 6, 3
_TELLING_MIN = 24
_EVENTS_MAX = 12
"""Of one span: the first ones, and the last."""
_DEPTH_MAX = 12
"""Deeper ones are drawn at this depth: names want some room, too."""
_STYLES = {"error": "red", "ok": "green", "unset": ""}
_ASCII = str.maketrans({"│": "|", "├": "|", "└": "`", "─": "-", "█": "#", "▏": "|", "…": "~", "·": "."})


@dataclass(frozen=True, slots=True)
class _Row:
    span: Span
    stem: str
    """What is drawn before the name."""
    below: str
    """The same, before what is told underneath."""


def draw_trace(trace: Trace, width: int, when: str, *, is_ascii: bool = False) -> list[Text]:
    """Lines of at most `width` cells, from 60 on. `when`: the time at which it began, as it is shown."""
    begin_s = min(span.start_s for span in trace.spans)
    end_s = max(span.end_s for span in trace.spans)
    rows = list(_walk(trace.spans))
    longest = max(cell_len(row.stem) + cell_len(tame(row.span.name)) for row in rows)
    room = width - _TIME - _STATUS - _GAPS
    name_cells = min(max(longest, _NAME_MIN), _NAME_MAX, room - _BAR_MIN)
    bar_cells = room - name_cells
    lines = [Text(line, style="bold") for line in _describe(trace, end_s - begin_s, when, width)]
    for row in rows:
        bar = _draw_bar(row.span, begin_s, max(end_s - begin_s, 1e-9), bar_cells)
        lines.append(_draw_span(row, name_cells, bar))
        lines += [Text(line, style="dim") for line in _tell(row, width)]
    return [_to_ascii(line) for line in lines] if is_ascii else lines


def _describe(trace: Trace, length_s: float, when: str, width: int) -> Iterator[str]:
    turns = dict.fromkeys(describe_turn(span) for span in trace.spans if span.name == SpanName.TURN)
    count = f"{len(trace.spans)} span{'' if len(trace.spans) == 1 else 's'}"
    yield from (fit(turn, width) for turn in turns)
    yield f"trace {tame(trace.spans[0].trace_id)}"
    yield f"{when}, {format_ms(length_s)}, {count}"


def _walk(spans: Sequence[Span]) -> Iterator[_Row]:
    """Parents before their children, all by start. One whose parent is not there is a root."""
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in spans:
        parent = span.parent_span_id if span.parent_span_id in known - {span.span_id} else ""
        children.setdefault(parent, []).append(span)
    waiting = [_Row(span, "", "") for span in reversed(children.get("", []))]
    seen: set[str] = set()
    while waiting or len(seen) < len(known):
        if not waiting:  # a ring of parents: no trace of ours, but it must end
            waiting.append(_Row(next(span for span in spans if span.span_id not in seen), "", ""))
        row = waiting.pop()
        if row.span.span_id in seen:
            continue
        seen.add(row.span.span_id)
        below = [span for span in children.get(row.span.span_id, []) if span.span_id not in seen]
        is_deep = len(row.below) >= 2 * _DEPTH_MAX
        indent = row.below[:-2] if is_deep else row.below
        yield _Row(row.span, row.stem, row.below + ("│ " if below and not is_deep else "  "))
        for place, span in reversed(list(enumerate(below))):
            is_last = place == len(below) - 1
            waiting.append(_Row(span, f"{indent}{'└─' if is_last else '├─'}", f"{indent}{'  ' if is_last else '│ '}"))


def _draw_bar(span: Span, begin_s: float, length_s: float, cells: int) -> str:
    """As long as the span took, at least a stroke, and never beyond the end."""
    first = (span.start_s - begin_s) / length_s * cells
    last = (span.end_s - begin_s) / length_s * cells
    at = min(int(first), cells - 1)
    if last - first < 0.5:
        return f"{' ' * at}▏"
    return f"{' ' * at}{'█' * max(min(round(last), cells) - at, 1)}"


def _draw_span(row: _Row, name_cells: int, bar: str) -> Text:
    span = row.span
    name = fit(tame(span.name), max(name_cells - cell_len(row.stem), 4))
    line = Text(f"{row.stem}{name}")
    line.pad_right(max(0, name_cells - line.cell_len))
    line.append(f" {format_ms(span.end_s - span.start_s).rjust(_TIME)} ")
    status = "" if span.status == "unset" else tame(span.status)
    line.append(status.ljust(_STATUS), style=_STYLES.get(span.status, ""))
    line.append(f" {bar}", style="red" if span.status == "error" else "cyan")
    line.rstrip()
    return line


def _tell(row: _Row, width: int) -> Iterator[str]:
    """Facts, what went wrong, what happened during it, and what it goes on from."""
    span = row.span
    facts = ", ".join(_without_turn(list_facts(span.attributes), span))
    parts = [facts, tame(span.status_message), *_tell_events(span), *map(describe_link, span.links)]
    room = max(width - cell_len(row.below) - 1, _TELLING_MIN)
    for part in filter(None, parts):
        for line in _wrap(part, room):
            yield f"{row.below} {line}"


def _without_turn(facts: list[str], span: Span) -> list[str]:
    """Of a span that is about a turn it is the head that names it; of one about a session alone, the span."""
    if span.name == SpanName.SESSION and Attr.SESSION_ID in span.attributes:
        return [tame(span.attributes[Attr.SESSION_ID]), *facts]
    return facts


def _tell_events(span: Span) -> list[str]:
    told = [f"· {describe_event(event, span)}" for event in span.events]
    if len(told) <= _EVENTS_MAX:
        return told
    return [*told[: _EVENTS_MAX - 2], f"· … {len(told) - _EVENTS_MAX + 1} more", told[-1]]


def _wrap(text: str, room: int) -> Iterable[str]:
    """By characters: what is wider than its characters say loses its middle."""
    return (fit(line, room) for line in textwrap.wrap(text, room, subsequent_indent="  "))


def _to_ascii(line: Text) -> Text:
    plain = line.copy()
    plain.plain = line.plain.translate(_ASCII)
    return plain
