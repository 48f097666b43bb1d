"""What `tenure trace` draws: the tree, its bars, its facts, within the terminal and with nothing that acts on it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.cells import cell_len

from services.cli.trace_facts import describe_link, format_ms, list_facts
from services.cli.trace_tree import draw_trace
from services.client.traces import Span, SpanEvent, SpanLink, Trace
from telemetry.names import Attr

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
WHEN = "2026-11-29 19:51:21.123+00:00"


def span(
    number: int, name: str, parent: int = 0, *, ms: tuple[float, float] = (0, 100), attributes: Mapping[str, str] = {}
) -> Span:
    """From `ms[0]` to `ms[1]` after the beginning."""
    return Span(
        trace_id=TRACE_ID,
        span_id=f"{number:016x}",
        parent_span_id=f"{parent:016x}" if parent else "",
        name=name,
        kind="internal",
        start_s=1000.0 + ms[0] / 1e3,
        end_s=1000.0 + ms[1] / 1e3,
        status="unset",
        status_message="",
        attributes=attributes,
        events=(),
        links=(),
    )


def draw(*spans: Span, width: int = 80, is_ascii: bool = False) -> list[str]:
    return [line.plain for line in draw_trace(Trace(spans, 0), width, WHEN, is_ascii=is_ascii)]


TURN = span(
    2,
    "turn",
    1,
    ms=(10, 90),
    attributes={
        Attr.TURN_ID: "t7",
        Attr.SESSION_ID: "alice",
        Attr.INPUT_TOKENS: "1812",
        Attr.SLOT_TOKENS: "1800",
        Attr.COMPUTED_TOKENS: "12",
        Attr.OUTPUT_TOKENS: "1",
    },
)


def test_draw_when_a_turn_then_head_tree_bars_and_facts() -> None:
    move = span(3, "kv.lend", 2, ms=(50, 50), attributes={Attr.FROM: "session 9", Attr.TO: "request 4"})
    decode = replace(
        span(4, "turn.decode", 2, ms=(60, 90)),
        status="ok",
        events=(SpanEvent(1000.07, "chunk", {Attr.TOKENS: "8"}),),
        links=(SpanLink("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "previous_turn"),),
    )
    assert draw(span(1, "Generate tiny"), TURN, move, decode) == [
        "turn t7 of session alice",
        f"trace {TRACE_ID}",
        f"{WHEN}, 100 ms, 4 spans",
        "Generate tiny       100 ms" + " " * 8 + "█" * 46,
        "└─turn             80.0 ms" + " " * 12 + "█" * 37,
        "  │  1,812 tokens in, 1,800 from the slot, 12 computed, 1 token out",
        "  ├─kv.lend           0 ms" + " " * 30 + "▏",
        "  │    session 9 -> request 4",
        "  └─turn.decode    30.0 ms ok" + " " * 32 + "█" * 14,
        "       · +10.0 ms chunk: 8 tokens",
        "       <- previous_turn 0af76519…/00f067aa…",
    ]


def test_draw_when_a_parent_is_not_kept_then_its_child_is_a_root() -> None:
    lines = draw(span(5, "turn.decode", 99), span(6, "kv.park", 5))
    assert lines[2].startswith("turn.decode ")
    assert lines[3].startswith("└─kv.park ")


def test_draw_when_spans_are_each_others_parents_then_each_is_drawn_once() -> None:
    lines = draw(span(5, "a", 6), span(6, "b", 5), span(7, "c", 7))
    assert sorted(line.strip("└─│├ ").split()[0] for line in lines[2:]) == ["a", "b", "c"]


@pytest.mark.parametrize("width", [60, 80, 132])
def test_draw_when_names_and_facts_are_long_then_no_line_is_wider_than_the_terminal(width: int) -> None:
    attributes: dict[str, str] = {
        Attr.TURN_ID: "長い" * 80,
        Attr.OUTCOME: "w" * 300,
        Attr.FROM: "session 1",
        Attr.TO: "request 2",
    }
    deep = [span(number, f"{number}" * 40, number - 1, attributes=attributes) for number in range(1, 40)]
    failed = replace(
        deep[3], status="error", status_message="長" * 100, links=(SpanLink("f" * 32, "e" * 16, "x", "長い" * 80),)
    )
    lines = draw(*deep[:3], failed, *deep[4:], replace(TURN, attributes=attributes), width=width)
    assert max(map(cell_len, lines)) <= width


def test_draw_when_texts_have_control_characters_then_none_reaches_the_terminal() -> None:
    evil = "\x1b[2J\x07\r\n\u202e\u0301"
    attributes: dict[str, str] = {
        Attr.TURN_ID: evil,
        Attr.SESSION_ID: evil,
        Attr.FROM: evil,
        Attr.TO: evil,
        Attr.OUTCOME: evil,
    }
    event = SpanEvent(1000.0, evil, {Attr.DETAIL: evil})
    full = replace(
        span(1, evil, attributes=attributes),
        status=evil,
        status_message=evil,
        events=(event,),
        links=(SpanLink(evil, evil, evil, evil),),
    )
    for line in draw(full, replace(full, span_id="2", name="turn"), replace(full, span_id="3", name="session")):
        assert line.isprintable(), ascii(line)


def test_draw_when_the_terminal_has_only_ascii_then_so_is_the_tree() -> None:
    lines = draw(span(1, "Generate tiny"), TURN, span(3, "kv.lend", 2, ms=(50, 50)), is_ascii=True)
    assert all(line.isascii() for line in lines)
    assert lines[3].endswith("#" * 46)


def test_draw_when_a_span_has_many_events_then_the_first_the_last_and_how_many_between() -> None:
    events = tuple(SpanEvent(1000.0 + number / 1e3, "chunk", {Attr.START: str(number)}) for number in range(40))
    lines = [line for line in draw(replace(span(1, "turn.prefill"), events=events)) if "·" in line]
    assert len(lines) == 12
    assert lines[-2].endswith("… 29 more")
    assert lines[-1].endswith("+39.0 ms chunk: from token 39")


def test_draw_when_a_span_failed_then_its_status_and_why() -> None:
    failed = replace(span(1, "turn"), status="error", status_message="deadline: 2 s")
    assert " error " in draw(failed)[3]
    assert "deadline: 2 s" in draw(failed)[4]


@pytest.mark.parametrize(
    ("relation", "leads_to", "words"),
    [
        ("previous_turn", "turn t1", "previous_turn t1  "),
        ("previous_turn", "turn turn t1", "previous_turn turn t1  "),
        ("turn", "turn t1", "turn t1  "),
        ("previous_holder", "turn t1", "previous_holder turn t1  "),
        ("previous_holder", "kv.park of t1", "previous_holder kv.park of t1  "),
        ("previous_turn", "", "previous_turn "),
        ("previous_turn", "turn \x1b[2J", "previous_turn \N{REPLACEMENT CHARACTER}[2J  "),
    ],
)
def test_describe_link_when_it_leads_somewhere_then_told_where_before_the_ids(
    relation: str, leads_to: str, words: str
) -> None:
    link = SpanLink("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", relation, leads_to)
    assert describe_link(link) == f"<- {words}0af76519…/00f067aa…"


@pytest.mark.parametrize(
    ("attributes", "facts"),
    [
        ({Attr.FULL_PAGES: "1", Attr.SWA_PAGES: "2"}, ["1 page", "2 SWA pages"]),
        ({Attr.RETRACTIONS: "0", Attr.RPC_STATUS: "0"}, []),
        ({Attr.RETRACTIONS: "2", Attr.RPC_STATUS: "4"}, ["2 retractions", "gRPC status 4"]),
        ({Attr.TO: "cache"}, []),
        ({Attr.SESSION_ID: "s", Attr.PROVIDER: "tenure"}, []),
        ({Attr.OUTCOME: "{x}"}, ["ended: {x}"]),
    ],
)
def test_list_facts_when_these_then_in_words(attributes: Mapping[str, str], facts: list[str]) -> None:
    assert list_facts(attributes) == facts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1e-9, "0 ms"),
        (2e-5, "0.020 ms"),
        (0.0009999, "1.0 ms"),
        (0.0123, "12.3 ms"),
        (0.09996, "100 ms"),
        (3.21, "3,210 ms"),
        (12.3, "12.3 s"),
        (4000, "4,000.0 s"),
    ],
)
def test_format_ms_when_these_then_short(seconds: float, text: str) -> None:
    assert format_ms(seconds) == text
