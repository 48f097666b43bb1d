"""The whole page: one file that needs nothing else, with and without its script, on paper too."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo

from services.client.history import History
from services.client.incidents import Incident
from services.client.pools import name_units
from services.report.activity import MOVES, Strip, build_moves, build_strips, draw_move, draw_strip, draw_strips
from services.report.areas import draw_pool
from services.report.head import draw_head, draw_span_numbers, draw_state, draw_totals
from services.report.lane_picture import STATES, draw_lanes
from services.report.lanes import Lanes, build_lanes
from services.report.markup import Markup, element, escape_text, join
from services.report.numbers import format_numbers
from services.report.sampling import NUM_COLUMNS
from services.report.scales import Span
from services.report.script import SCRIPT
from services.report.style import write_style
from services.report.timeline import Timeline, caption, start_times

LANES_MAX = 60
_HATCH = Markup(
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0v5" stroke="currentColor" stroke-width="1.2"/></pattern></defs></svg>'
)
_EQUATION = (
    "available + evictable + protected + session + uncached = total. Turns that run own the uncached pages, sessions "
    "those of their slots, the prefix cache the protected (in use) and the evictable ones. Quarantined pages stand "
    "above the total: they are out of circulation."
)
_CAPTIONS = {
    "swa": "Pages of KV for layers with sliding windows: holders keep those of their last window. The same equation.",
    "mamba": "States of recurrent layers, each that of a whole sequence up to some token. The same equation.",
    "rows": "One row of the page table for each turn that runs and each session that holds KV.",
}
"""By the kind of the pool; the equation for the first one."""
_MARKS = (
    ("mark-turn-in", "M7 3v7", "turn accepted"),
    ("mark-turn", "M0 7h13", "turn waits or runs"),
    ("mark-turn-out", "M7 6v3", "turn ended"),
    ("mark-turn-cut", "M4 3l6 6m0 -6l-6 6", "turn broken off"),
    ("mark-turn-back", "M10 3l-6 3.5l6 3.5", "turn retracted"),
    ("mark-forked", "M7 0v13", "forked"),
    ("mark-truncated", "M7 0v13", "truncated"),
)


@dataclass(frozen=True, slots=True)
class Server:
    """Whose report it is, and for whom: times are told in `zone`."""

    model_name: str
    target: str
    settings: Mapping[str, str]
    zone: tzinfo


def render_report(history: History, incidents: Sequence[Incident], server: Server) -> str:
    """The page as text. Cost: grows with samples and facts, 3,600 and 20,000 of them make less than 2 MB."""
    span = find_span(history, server.zone)
    shown = tuple(incident for incident in incidents if _touches(incident, span))
    timeline = Timeline(span, history.samples, start_times(history), history.interval_s, shown)
    name = f"Tenure: {server.model_name}, {span.wall(span.end_s):%Y-%m-%d %H:%M}"
    body = (
        _HATCH,
        draw_head(server.model_name, server.target, history, span),
        draw_state(history, incidents, shown, span),
        _draw_pictures(timeline, history),
        _section("Since the server began to serve", draw_totals(history.totals)),
        _section("Incidents", _draw_incident_table(incidents, span)),
        element(
            "details", element("summary", escape_text(f"Settings ({len(server.settings)})")), _draw_settings(server)
        ),
        element("div", id="tip"),
        element("script", Markup(SCRIPT)),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escape_text(name)),
        element("style", Markup(write_style())),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def find_span(history: History, zone: tzinfo) -> Span:
    """That of the samples; without any, an interval up to now."""
    starts = start_times(history)
    start_s = starts[0] if starts else history.now_s - max(history.interval_s, 1.0)
    end_s = history.samples[-1].time_s if history.samples else history.now_s
    return Span(start_s, max(end_s, start_s + 0.001), zone)


def _touches(incident: Incident, span: Span) -> bool:
    until_s = incident.time_s if incident.over_s is None else incident.over_s
    return incident.time_s <= span.end_s and until_s >= span.start_s


def _draw_pictures(timeline: Timeline, history: History) -> Markup:
    if not timeline.samples:
        return join((_section("Pools", caption("There is nothing to draw yet.")), format_numbers(timeline, (), ())))
    page_sizes = {pool.kind: pool.page_size for pool in timeline.samples[-1].pools}
    strips, moves = build_strips(timeline), build_moves(timeline)
    pools = [
        _section(
            f"Who owned the {name_units(kind)}",
            caption(_CAPTIONS.get(kind, _EQUATION)),
            draw_pool(timeline, kind, page_size),
        )
        for kind, page_size in page_sizes.items()
    ]
    return join(
        (
            _section("In this span", draw_span_numbers(history)),
            caption(_explain_sampling(timeline)),
            *pools,
            _section("Activity", _draw_activity(timeline, strips)),
            _section("Moves of units between owners, a second", _draw_moves(timeline, moves)),
            _section("Sessions", _draw_sessions(timeline, history)),
            format_numbers(timeline, list(page_sizes), (*strips, *moves)),
        )
    )


def _explain_sampling(timeline: Timeline) -> str:
    each = (
        f"One sample is {timeline.interval_s:g} s; a value is drawn until the next one. Numbers beside the pools are "
        "those at the end. Red lines are incidents, shaded until they were over."
    )
    if len(timeline.samples) <= NUM_COLUMNS:
        return each
    per_pixel = len(timeline.samples) / NUM_COLUMNS
    return (
        f"{each} There are {per_pixel:.1f} samples to a pixel: of each pixel's samples those are drawn at which a line "
        "is highest and lowest, so that no spike is missing; none is averaged."
    )


def _draw_activity(timeline: Timeline, strips: Sequence[Strip]) -> Markup:
    if not strips:
        return caption("The server was idle in this span: no turn, no step, no session.")
    return draw_strips(timeline, strips, draw_strip)


def _draw_moves(timeline: Timeline, moves: Sequence[Strip]) -> Markup:
    if not moves:
        return caption("No unit changed its owner in this span.")
    happened = {strip.name for strip in moves}
    missing = [name for name, _, _ in MOVES if name not in happened]
    never = f" Did not happen: {', '.join(missing)}." if missing else ""
    note = caption(f"Each row has a height of its own: its peak, which stands beside it.{never}")
    return join((note, draw_strips(timeline, moves, draw_move)))


def _draw_sessions(timeline: Timeline, history: History) -> Markup:
    whole = timeline
    if history.facts and history.facts_dropped:
        whole = replace(timeline, span=_cut(timeline.span, history.facts[0].time_s))
    lanes = build_lanes(history.facts, whole.span.start_s, whole.span.end_s, LANES_MAX)
    if not lanes.shown:
        return caption("No session did anything in this span.")
    return join(
        (
            caption(" ".join(_explain_lanes(lanes, history.facts_dropped, whole.span))),
            _draw_lane_key(),
            draw_lanes(whole, lanes.shown),
        )
    )


def _cut(span: Span, start_s: float) -> Span:
    return replace(span, start_s=min(max(start_s, span.start_s), span.end_s - 0.001))


def _explain_lanes(lanes: Lanes, num_dropped: int, span: Span) -> Iterator[str]:
    if num_dropped:
        yield (
            f"{num_dropped:,} older facts are not kept any more, so this picture has a time axis of its own: lanes are "
            f"whole from {span.clock(span.start_s)} on."
        )
    if lanes.num_left_out:
        yield f"The {len(lanes.shown)} most active sessions, in the order of their opening; "
        yield f"{lanes.num_left_out:,} more are not drawn."
    yield (
        "Turns stand above a bar, moves of units below it, in the colour of whom they go to. The number at the right "
        "is that of turns that ended. Sessions that did nothing have no lane."
    )


def _draw_lane_key() -> Markup:
    states = [element("span", element("i", class_=f"kv-{state}"), escape_text(name)) for state, name in STATES]
    marks = [
        element("span", element("svg", element("path", class_=kind, d=d), viewBox="0 0 13 13"), escape_text(name))
        for kind, d, name in _MARKS
    ]
    return join((element("div", *states, class_="key"), element("div", *marks, class_="key")))


def _draw_incident_table(incidents: Sequence[Incident], span: Span) -> Markup:
    if not incidents:
        return caption("None.")
    names = ("time", "id", "kind", "what happened", "over after")
    head = element("tr", *(element("th", escape_text(name)) for name in names))
    return element("table", head, *(_draw_incident_row(incident, span) for incident in incidents))


def _draw_incident_row(incident: Incident, span: Span) -> Markup:
    over = "-" if incident.over_s is None else f"{max(incident.over_s - incident.time_s, 0.0):,.1f} s"
    outside = "" if _touches(incident, span) else " (not in this span)"
    when = f"{span.wall(incident.time_s):%Y-%m-%d %H:%M:%S}{outside}"
    return element(
        "tr",
        element("td", escape_text(when)),
        element("td", element("code", escape_text(incident.incident_id)), class_="short"),
        element("td", escape_text(incident.kind), class_="short"),
        element("td", escape_text(incident.message)),
        element("td", escape_text(over), class_="short"),
    )


def _draw_settings(server: Server) -> Markup:
    rows = (
        element("tr", element("td", element("code", escape_text(name))), element("td", escape_text(value)))
        for name, value in server.settings.items()
    )
    return element("table", *rows)


def _section(name: str, *children: Markup) -> Markup:
    return element("section", element("h2", escape_text(name)), *children)
