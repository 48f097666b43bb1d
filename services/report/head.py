"""The top of the page: what was served and when, whether all was well, and the numbers that tell most."""

from collections.abc import Mapping, Sequence

from services.client.history import History, Totals
from services.client.incidents import Incident
from services.report.markup import Markup, element, escape_text, join
from services.report.scales import Span, format_length, format_number
from services.report.timeline import caption

_SOURCES = (("session", "a session's slot"), ("protected", "the prefix cache"), ("request", "computed"))


def draw_head(model_name: str, target: str, history: History, span: Span) -> Markup:
    date, until = span.wall(span.start_s).strftime("%Y-%m-%d"), span.wall(span.end_s).strftime("%Y-%m-%d")
    end = span.clock(span.end_s) if until == date else f"{until} {span.clock(span.end_s)}"
    started = span.wall(history.started_s).strftime("%Y-%m-%d %H:%M:%S")
    words = (
        f"{date} {span.clock(span.start_s)} to {end} ({span.offset()}), {format_length(span.length_s)}; "
        f"serving since {started}"
    )
    return join(
        (
            element("h1", escape_text(model_name)),
            element("p", escape_text(f"Tenure at {target}"), class_="note"),
            element("p", escape_text(words)),
        )
    )


def draw_state(history: History, incidents: Sequence[Incident], shown: Sequence[Incident], span: Span) -> Markup:
    """Two lines: on the books, and on what went wrong."""
    return join((_draw_books(history, span), _draw_troubles(incidents, shown)))


def _draw_books(history: History, span: Span) -> Markup:
    wrong = [
        (sample.time_s, pool)
        for sample in history.samples
        for pool in sample.pools
        if pool.available + pool.evictable + pool.protected + pool.session_held + pool.uncached != pool.total
    ]
    lost = max((pool.quarantined for sample in history.samples for pool in sample.pools), default=0)
    if not history.samples:
        return _line("No sample was taken yet.", is_wrong=False)
    if wrong:
        time_s, pool = wrong[0]
        count = len({time_s for time_s, _ in wrong})
        words = f"THE BOOKS DID NOT BALANCE in {count} samples, first at {span.clock(time_s)} in the pool {pool.kind}."
        return _line(words, is_wrong=True)
    words = f"The books balanced in all {len(history.samples):,} samples: every unit in use had exactly one owner."
    if len(history.samples) == 1:
        words = "The books balanced in the one sample: every unit in use had exactly one owner."
    if lost:
        return _line(f"{words} OUT OF CIRCULATION: {lost}, which nobody owned any more.", is_wrong=True)
    return _line(words, is_wrong=False)


def _draw_troubles(incidents: Sequence[Incident], shown: Sequence[Incident]) -> Markup:
    if not incidents:
        return _line("No incident is on record.", is_wrong=False)
    others = len(incidents) - len(shown)
    count = f"{len(shown)} incident{'' if len(shown) == 1 else 's'} in this span"
    rest = f", {others} before or after it" if others else ""
    return _line(f"{count}{rest}; see the table below.", is_wrong=bool(shown))


def _line(words: str, *, is_wrong: bool) -> Markup:
    return element("p", escape_text(words), class_="state wrong" if is_wrong else "state")


def draw_span_numbers(history: History) -> Markup:
    samples = history.samples
    failed = sum(sample.steps_failed for sample in samples)
    tiles = [
        ("turns ended", sum(sample.turns_ended for sample in samples)),
        ("steps", sum(sample.steps for sample in samples)),
        ("steps failed", failed),
        ("tokens generated", sum(sample.tokens_generated for sample in samples)),
        ("tokens computed", sum(sample.tokens_computed for sample in samples)),
        ("most turns at once", max((sample.turns_running for sample in samples), default=0)),
        ("most sessions open", max((sample.sessions_open for sample in samples), default=0)),
    ]
    return _draw_tiles([(name, f"{count:,}") for name, count in tiles])


def draw_totals(totals: Totals) -> Markup:
    ended = sum(totals.endings.values())
    tiles = [
        ("turns accepted", totals.turns_accepted),
        ("turns ended", ended),
        ("steps", totals.steps),
        ("steps failed", totals.steps_failed),
        ("tokens generated", totals.tokens_generated),
        ("retractions", totals.retractions),
        ("demotions", totals.demotions),
        ("sessions opened", totals.sessions_opened),
        ("sessions closed", sum(totals.sessions_closed.values())),
    ]
    return join(
        (
            _draw_tiles([(name, f"{count:,}") for name, count in tiles]),
            caption("Turns ended by: " + _list_counts(totals.endings)),
            caption("Sessions closed by: " + _list_counts(totals.sessions_closed)),
            _draw_sources(totals),
        )
    )


def _draw_sources(totals: Totals) -> Markup:
    counts = (totals.tokens_from_slot, totals.tokens_from_tree, totals.tokens_to_compute)
    whole = sum(counts)
    if whole == 0:
        return caption("No prompt was admitted yet.")
    shares = [100 * count / whole for count in counts]
    bars = [
        element("i", class_=f"swatch {colour}", style=f"width:{share:.2f}%")
        for (colour, _), share in zip(_SOURCES, shares, strict=True)
    ]
    names = [
        element("span", element("i", class_=f"swatch {colour}"), escape_text(f"{name} {count:,} ({share:.1f} %)"))
        for (colour, name), count, share in zip(_SOURCES, counts, shares, strict=True)
    ]
    words = f"Where the KV of {format_number(whole)} prompt tokens came from:"
    return join((caption(words), element("div", *bars, class_="shares"), element("div", *names, class_="key")))


def _list_counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,}" for name, count in ordered if count) or "none"


def _draw_tiles(tiles: Sequence[tuple[str, str]]) -> Markup:
    return element(
        "div",
        *(
            element("div", element("b", escape_text(value)), element("span", escape_text(name)), class_="tile")
            for name, value in tiles
        ),
        class_="tiles",
    )
