"""The log sink: structured lines, and never a token id."""

import logging
from collections.abc import Iterator

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import (
    CoreEvent,
    Numbered,
    SessionClosed,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    StepAnswered,
    TokensSampled,
    TurnAccepted,
    TurnEnded,
    Usage,
)
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from telemetry.log_sink import LogSink, format_line

SID = SessionId("s1")
USAGE = Usage(context_len=5, tokens_from_slot=0, tokens_from_tree=0, tokens_computed=5, output_len=2, retractions=0)


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    logger = logging.getLogger("tests.log_sink")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(collector)
    yield collector
    logger.removeHandler(collector)


def make_sink() -> LogSink:
    return LogSink(logging.getLogger("tests.log_sink"))


def numbered(*events: CoreEvent) -> tuple[Numbered, ...]:
    return tuple(Numbered(seq, event) for seq, event in enumerate(events, 1))


def accepted(rid: int, trace_id: str) -> TurnAccepted:
    return TurnAccepted(Rid(rid), TurnId("t1"), SID, context_len=5, new_len=5, max_tokens=9, trace_id=trace_id)


def ended(rid: int, outcome: FinishReason | AbortReason, detail: str = "") -> TurnEnded:
    is_committed = isinstance(outcome, FinishReason)
    return TurnEnded(
        Rid(rid), TurnId("t1"), SID, outcome, USAGE, history_len=7, is_committed=is_committed, detail=detail
    )


def test_publish_when_session_opens_and_closes_then_one_line_each_with_trace_id(collector: Collector) -> None:
    sink = make_sink()
    sink.publish(
        numbered(
            SessionOpened(SID, True, "abc", uid=1), SessionClosed(SID, AbortReason.SESSION_CLOSED, history_len=7, uid=1)
        ),
        0.0,
    )
    assert collector.lines == [
        "INFO event=session_opened session_id=s1 streaming=true trace_id=abc",
        "INFO event=session_closed session_id=s1 reason=session_closed history_len=7 trace_id=abc",
    ]


def test_publish_when_turn_ends_then_its_trace_id_is_there_and_no_token_ids(collector: Collector) -> None:
    sink = make_sink()
    sampled = TokensSampled(Rid(3), output_start=0, token_ids=(31337, 31338))
    sink.publish(numbered(accepted(3, "abc"), sampled, ended(3, FinishReason.STOP)), 0.0)
    (line,) = collector.lines
    assert line.startswith("DEBUG event=turn_ended rid=3 turn_id=t1 session_id=s1 outcome=stop context_len=5")
    assert line.endswith("trace_id=abc")
    assert "3133" not in line


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (ended(3, AbortReason.FORWARD_FAILED, "out of range"), "WARNING"),
        (ended(3, AbortReason.CLIENT), "DEBUG"),
        (StepAnswered(StepNo(4), "out of range"), "ERROR"),
    ],
)
def test_publish_when_the_fault_is_ours_then_louder(event: CoreEvent, level: str, collector: Collector) -> None:
    sink = make_sink()
    sink.publish(numbered(event), 0.0)
    assert [line.split()[0] for line in collector.lines] == [level]


def test_publish_when_step_went_well_then_silent(collector: Collector) -> None:
    sink = make_sink()
    sink.publish(numbered(StepAnswered(StepNo(4), None)), 0.0)
    assert collector.lines == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [("plain", "plain"), ("two words", '"two words"'), ('a"b', '"a\\"b"'), ("", '""'), ("é\n", '"\\u00e9\\n"')],
)
def test_format_line_when_text_is_odd_then_quoted_on_one_line(value: str, shown: str) -> None:
    assert format_line("x", {"key": value, "absent": None, "flag": False}) == f"event=x key={shown} flag=false"


def moved(source: SlotState, target: SlotState, uid: int = 1) -> SlotChanged:
    return SlotChanged(SID, source, target, kv_committed_len=0, uid=uid)


def truncated(uid: int = 1) -> SessionTruncated:
    return SessionTruncated(SID, uid, history_len=3, kv_len=0)


HELD, DEMOTED = SlotState.HELD, SlotState.DEMOTED


@pytest.mark.parametrize(
    ("events", "num_lines"),
    [
        ((moved(HELD, DEMOTED),), 1),
        ((moved(SlotState.EMPTY, DEMOTED),), 0),
        ((moved(SlotState.COMMITTING, DEMOTED),), 0),
        ((moved(HELD, DEMOTED), truncated()), 0),
        ((moved(HELD, DEMOTED), truncated(uid=2)), 1),
        ((moved(HELD, DEMOTED), moved(DEMOTED, SlotState.EMPTY), truncated()), 1),
    ],
    ids=["pressure", "fork", "cut while it came back", "truncate", "truncate of another", "pressure, then truncate"],
)
def test_publish_when_a_slot_is_demoted_then_a_line_only_where_room_was_needed(
    events: tuple[CoreEvent, ...], num_lines: int, collector: Collector
) -> None:
    make_sink().publish(numbered(*events), 0.0)
    assert len(collector.lines) == num_lines
    assert all("event=session_demoted session_id=s1 was=held" in line for line in collector.lines)
