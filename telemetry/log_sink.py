"""Operator facts as structured log lines: one `event=... key=value` line each."""

import json
import logging
from dataclasses import dataclass

from engine.core.commands import AbortReason
from engine.core.events import (
    CoreEvent,
    KvMoved,
    Numbered,
    SessionClosed,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    StepAnswered,
    TurnAccepted,
    TurnEnded,
    TurnRetracted,
)
from engine.core.ids import Rid, SessionId
from engine.core.ownership import Move

_OUR_FAULTS = (AbortReason.FORWARD_FAILED, AbortReason.COMMIT_FAILED)

Facts = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Line:
    level: int
    text: str


class LogSink:
    """An `EventSink`. It logs from the caller's thread, so the logger's handlers must not block: `BackgroundHandler`.

    Knows the trace id of each live turn and open session, and nothing else of them: no prompts, no token ids.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._turn_traces: dict[Rid, str] = {}
        self._session_traces: dict[SessionId, str] = {}

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        for place, numbered in enumerate(events):
            line = self._to_line(numbered)
            if line is not None and not _is_rewinding(numbered.event, events[place + 1 :]):
                self._logger.log(line.level, "%s", line.text)

    def _to_line(self, numbered: Numbered) -> Line | None:
        self._remember(numbered.event)
        line = self._describe(numbered.event)
        self._forget(numbered.event)
        return line

    def _remember(self, event: CoreEvent) -> None:
        if isinstance(event, TurnAccepted):
            self._turn_traces[event.rid] = event.trace_id
        elif isinstance(event, SessionOpened):
            self._session_traces[event.session_id] = event.trace_id

    def _forget(self, event: CoreEvent) -> None:
        if isinstance(event, TurnEnded):
            self._turn_traces.pop(event.rid, None)
        elif isinstance(event, SessionClosed):
            self._session_traces.pop(event.session_id, None)

    def _describe(self, event: CoreEvent) -> Line | None:
        """The line of an event that operators care for, else None."""
        match event:
            case SessionOpened():
                return self._of_session(event.session_id, "session_opened", {"streaming": event.streaming})
            case SessionClosed():
                facts: Facts = {"reason": event.reason.value, "history_len": event.history_len}
                return self._of_session(event.session_id, "session_closed", facts)
            case SlotChanged(source=SlotState.HELD, target=SlotState.DEMOTED):
                return self._of_session(event.session_id, "session_demoted", {"was": event.source.value})
            case TurnRetracted():
                facts = {"rid": event.rid, "output_len": event.output_len}
                return self._of_turn(event.rid, logging.INFO, "turn_retracted", facts)
            case TurnEnded():
                return self._turn_ended(event)
            case StepAnswered(failure=str(failure)):
                return Line(logging.ERROR, format_line("step_failed", {"step": event.step, "failure": failure}))
            case KvMoved(move=Move.QUARANTINE):
                facts = {"pool": event.pool.value, "units": len(event.pages), "last_owner": str(event.source)}
                return Line(logging.ERROR, format_line("units_quarantined", facts))
            case _:
                return None

    def _turn_ended(self, event: TurnEnded) -> Line:
        facts: Facts = {
            "rid": event.rid,
            "turn_id": event.turn_id,
            "session_id": event.session_id,
            "outcome": event.outcome.value,
            "context_len": event.usage.context_len,
            "tokens_from_slot": event.usage.tokens_from_slot,
            "tokens_from_tree": event.usage.tokens_from_tree,
            "tokens_computed": event.usage.tokens_computed,
            "output_len": event.usage.output_len,
            "detail": event.detail or None,
        }
        level = logging.WARNING if event.outcome in _OUR_FAULTS else logging.DEBUG
        return self._of_turn(event.rid, level, "turn_ended", facts)

    def _of_turn(self, rid: Rid, level: int, event: str, facts: Facts) -> Line:
        return Line(level, format_line(event, facts | {"trace_id": self._turn_traces.get(rid, "")}))

    def _of_session(self, session_id: SessionId, event: str, facts: Facts) -> Line:
        named: Facts = {"session_id": session_id}
        trace: Facts = {"trace_id": self._session_traces.get(session_id, "")}
        return Line(logging.INFO, format_line(event, named | facts | trace))


def _is_rewinding(event: CoreEvent, later: tuple[Numbered, ...]) -> bool:
    """Whether a slot is let go because its session is cut, which is nothing that an operator has to hear of."""
    if not isinstance(event, SlotChanged):
        return False
    own = (each.event for each in later if isinstance(each.event, SlotChanged | SessionTruncated))
    return isinstance(next((each for each in own if each.uid == event.uid), None), SessionTruncated)


def format_line(event: str, facts: Facts) -> str:
    """`event=name key=value ...`: absent facts are left out, texts with blanks or quotes are quoted as in JSON."""
    shown = (f"{key}={_format_value(value)}" for key, value in facts.items() if value is not None)
    return " ".join((f"event={event}", *shown))


def _format_value(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        is_plain = value.isascii() and value.isprintable() and not set(value) & set(' "=')
        return value if is_plain and value else json.dumps(value)
    return str(value)
