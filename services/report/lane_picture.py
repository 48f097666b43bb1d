"""The lanes as a picture: a bar in the colour of the KV's state, turns above it, moves of units below it."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from services.client.history import SessionFact
from services.client.pools import count_units
from services.report.activity import MOVES
from services.report.lanes import NO_KV, UNKNOWN, Lane, Segment
from services.report.markup import Markup, element, escape_text, format_px, join, text, title
from services.report.scales import LEFT, PLOT_WIDTH, RIGHT, Span, format_length
from services.report.timeline import Timeline, draw_grid, draw_incidents, draw_picture, shorten

STATES = (
    (NO_KV, "no KV of its own"),
    ("held", "held by its slot"),
    ("lent", "lent to a turn"),
    ("committing", "committing"),
    ("returning", "returning"),
    ("demoted", "in the cache"),
    (UNKNOWN, "not known"),
)
"""The class of the colour, and what it is called."""
_KNOWN_STATES = frozenset(state for state, _ in STATES)
_FINISHES = frozenset({"stop", "length"})
_TAKERS = {name: colour for name, _, colour in MOVES}
_LANE_PX = 22.0
_BAR_PX = 9.0
_BAR_TOP = 7.0
_BAR_PX_MIN = 0.6
"""Shorter ones would not be seen."""
_TITLED_SEGMENTS_MAX = 1500
_TITLED_MARKS_MAX = 1500
_TITLED_FACTS_MAX = 3
_TOP_PX = 6.0
_NAME_LEN = 24
_TURN_ID_LEN = 13


def draw_lanes(timeline: Timeline, lanes: Sequence[Lane]) -> Markup:
    bottom = _TOP_PX + _LANE_PX * len(lanes)
    titled_px = _find_titled_width(timeline.span, lanes)
    strip_px = _find_strip_width(timeline.span, lanes)
    rows = [
        _draw_lane(timeline.span, lane, _TOP_PX + _LANE_PX * row, titled_px, strip_px) for row, lane in enumerate(lanes)
    ]
    return draw_picture(
        "lanes",
        timeline.span,
        bottom + 20,
        "sessions, one lane each, over time",
        draw_grid(timeline, _TOP_PX, bottom, with_times=True),
        *rows,
        draw_incidents(timeline, _TOP_PX, bottom, with_ids=False),
    )


def _draw_lane(span: Span, lane: Lane, top: float, titled_px: float, strip_px: float) -> Markup:
    name = f"#{lane.number} {shorten(lane.session_id, _NAME_LEN)}"
    turns = f"{lane.num_turns} turn{'' if lane.num_turns == 1 else 's'}"
    base = top + _BAR_TOP + _BAR_PX
    return element(
        "g",
        element("text", title(lane.session_id), escape_text(name), x=6.0, y=base - 1, class_="name"),
        text(RIGHT + 6, base - 1, turns, "tick"),
        _draw_segments(span, lane.segments, top + _BAR_TOP, titled_px),
        _draw_turns(span, lane.facts, top + _BAR_TOP - 3),
        _draw_marks(span, lane.facts, top),
        _draw_strips(span, lane.facts, top, strip_px),
        class_="lane",
    )


def _colour_of(state: str) -> str:
    return f"kv-{state}" if state in _KNOWN_STATES else f"kv-{UNKNOWN}"


def _draw_segments(span: Span, segments: Sequence[Segment], top: float, titled_px: float) -> Markup:
    """Long ones tell what they are; short ones of a colour are one path."""
    parts: list[Markup] = []
    short: dict[str, list[str]] = {}
    for segment in segments:
        x, until = span.x(segment.start_s), span.x(segment.end_s)
        y, height = (top, _BAR_PX) if segment.state != NO_KV else (top + _BAR_PX / 2 - 1, 2.0)
        bar = _outline(x, y, max(until - x, _BAR_PX_MIN), height)
        colour = _colour_of(segment.state)
        if until - x < titled_px:
            short.setdefault(colour, []).append(bar)
        else:
            parts.append(element("path", title(_tell_segment(span, segment)), d=bar, class_=colour))
    paths = [element("path", d="".join(bars), class_=colour) for colour, bars in short.items()]
    return join([*parts, *paths])


def _outline(x: float, y: float, width: float, height: float) -> str:
    return f"M{format_px(x)} {format_px(y)}h{format_px(width)}v{format_px(height)}h{format_px(-width)}z"


def _tell_segment(span: Span, segment: Segment) -> str:
    tokens = "" if segment.tokens is None else f", {segment.tokens:,} tokens of KV"
    length = format_length(segment.length_s)
    return f"{segment.state} {span.clock(segment.start_s)} to {span.clock(segment.end_s)} ({length}){tokens}"


def _draw_turns(span: Span, facts: Iterable[SessionFact], y: float) -> Markup:
    """A line from acceptance to the end of each turn, or to that of the span. Those of an ordinary session overlap."""
    began_s: dict[str, float] = {}
    lines: list[tuple[float, float]] = []
    for fact in facts:
        if fact.what == "turn_accepted":
            began_s[fact.turn_id] = fact.time_s
        elif fact.what == "turn_ended":
            lines.append((began_s.pop(fact.turn_id, span.start_s), fact.time_s))
    lines += [(time_s, span.end_s) for time_s in began_s.values()]
    told = "".join(
        f"M{format_px(span.x(begin_s))} {format_px(y)}H{format_px(span.x(end_s))}" for begin_s, end_s in lines
    )
    return element("path", d=told, class_="mark-turn") if told else Markup("")


def _draw_marks(span: Span, facts: Iterable[SessionFact], top: float) -> Markup:
    """Turns above the bar, moves below it, forks and cuts across it; one path for each kind."""
    paths: dict[str, list[str]] = {}
    bar, below = top + _BAR_TOP, top + _BAR_TOP + _BAR_PX + 1
    for fact in facts:
        if not span.contains(fact.time_s):
            continue
        x = format_px(span.x(fact.time_s))
        match fact.what:
            case "turn_accepted":
                paths.setdefault("turn-in", []).append(f"M{x} {bar - 1:.0f}v-4")
            case "turn_ended" if fact.detail in _FINISHES:
                paths.setdefault("turn-out", []).append(f"M{x} {bar - 4:.0f}v2")
            case "turn_ended":
                paths.setdefault("turn-cut", []).append(f"M{x} {bar - 3.5:.1f}m-2.5 -2.5l5 5m0 -5l-5 5")
            case "turn_retracted":
                paths.setdefault("turn-back", []).append(f"M{x} {bar - 3.5:.1f}m3 -2.5l-4 2.5l4 2.5")
            case "forked" | "truncated":
                paths.setdefault(fact.what, []).append(f"M{x} {bar - 2:.0f}v{_BAR_PX + 4:.0f}")
            case what if what in _TAKERS:
                paths.setdefault(f"move {_TAKERS[what]}", []).append(f"M{x} {below:.0f}v4")
            case _:
                pass
    return join(element("path", d="".join(marks), class_=f"mark-{kind}") for kind, marks in paths.items())


def _draw_strips(span: Span, facts: Sequence[SessionFact], top: float, strip_px: float) -> Markup:
    """Clear strips over the marks, whose titles tell the facts."""
    parts: list[Markup] = []
    inside = [fact for fact in facts if span.contains(fact.time_s)]
    for column, told in groupby(inside, key=lambda fact: _find_column(span, fact.time_s, strip_px)):
        x = LEFT + column * strip_px
        words = title(*_tell_facts(span, list(told)))
        parts.append(element("path", words, d=_outline(x, top, min(strip_px, RIGHT - x), _LANE_PX)))
    return element("g", *parts, class_="clear")


def _find_column(span: Span, time_s: float, strip_px: float) -> int:
    return min(int((span.x(time_s) - LEFT) / strip_px), int((PLOT_WIDTH - 0.01) / strip_px))


def _tell_facts(span: Span, facts: Sequence[SessionFact]) -> list[str]:
    """A line each, or with that before it when it was in the same second."""
    lines: list[str] = []
    last = ""
    for fact in facts[:_TITLED_FACTS_MAX]:
        clock = span.clock(fact.time_s)
        if clock == last:
            lines[-1] += f"; {tell_fact(fact)}"
        else:
            lines.append(f"{clock} {tell_fact(fact)}")
        last = clock
    if len(facts) > _TITLED_FACTS_MAX:
        lines.append(f"and {len(facts) - _TITLED_FACTS_MAX} more")
    return lines


def tell_fact(fact: SessionFact) -> str:
    """As in `park 12 pages`, `turn ended: stop, 40 tokens [turn-1]`, `KV lent, 512 tokens`, `forked from chat`."""
    if fact.what in _TAKERS:
        return f"{fact.what} {count_units(fact.detail, fact.units)}"
    tokens = f", {fact.tokens:,} tokens" if fact.tokens else ""
    if fact.what == "kv":
        return f"KV {fact.detail}{tokens}"
    if fact.what == "forked":
        return f"forked from {shorten(fact.detail, _NAME_LEN)}{tokens}"
    detail = f": {shorten(fact.detail, _NAME_LEN)}" if fact.detail else ""
    turn = f" [{shorten(fact.turn_id, _TURN_ID_LEN)}]" if fact.what == "turn_ended" else ""
    return f"{fact.what.replace('_', ' ')}{detail}{tokens}{turn}"


def _find_titled_width(span: Span, lanes: Sequence[Lane]) -> float:
    """So wide must a segment be to have a title, that the page stays small."""
    per_s = PLOT_WIDTH / span.length_s
    widths = sorted((segment.length_s * per_s for lane in lanes for segment in lane.segments), reverse=True)
    return max(1.0, widths[_TITLED_SEGMENTS_MAX] + 0.1) if len(widths) > _TITLED_SEGMENTS_MAX else 1.0


def _find_strip_width(span: Span, lanes: Sequence[Lane]) -> float:
    """As narrow as can be without too many titles."""
    for strip_px in (5.0, 8.0, 12.0, 20.0, 32.0):
        count = sum(len({_find_column(span, fact.time_s, strip_px) for fact in lane.facts}) for lane in lanes)
        if count <= _TITLED_MARKS_MAX:
            return strip_px
    return 48.0
