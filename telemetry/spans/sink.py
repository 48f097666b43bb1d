"""The sink that draws turns, sessions, steps and changes of owner as spans."""

from collections.abc import Callable
from typing import Any

from engine.core.events import (
    CommitRequested,
    KvMoved,
    Numbered,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    StepAnswered,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
    TurnsForgotten,
)
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.runtime.handle import Caller
from engine.runtime.step_times import StepTimes
from telemetry.names import Attr, EventName, Relation, SpanName
from telemetry.spans.context import read_caller
from telemetry.spans.kv_draw import DRAWN, Handover
from telemetry.spans.open_span import OpenSpan
from telemetry.spans.record import SpanContext, Value
from telemetry.spans.session_draw import SessionDraw, draw_closing, draw_opening
from telemetry.spans.step_draw import StepDraws
from telemetry.spans.tracer import Tracer
from telemetry.spans.turn_draw import TurnDraw

_REQUEST, _SESSION = OwnerKind.REQUEST, OwnerKind.SESSION
_LEFT_BEHIND = (PoolKind.SWA, PoolKind.MAMBA)
"""Turns that run release windows and states as they go: that is counted by pool, not drawn."""
_GONE = "engine_gone"


class SpanSink:
    """An `EventSink` and a `StepListener`. Parents are explicit; every span ends on one path.

    Bounded by what lives: turns that have not ended or still have units, open sessions, steps in flight. Draws nothing
    before `begin`: the turn that warms the server up is nobody's.
    """

    def __init__(self, tracer: Tracer, trace_steps: int) -> None:
        """`trace_steps`: one of so many steps is drawn; 0 is none."""
        self._tracer = tracer
        self._steps = StepDraws(tracer, trace_steps)
        self._turns: dict[Rid, TurnDraw] = {}
        self._in_prompt: dict[Rid, TurnDraw] = {}
        """Those that have not generated since they were admitted."""
        self._sessions: dict[int, SessionDraw] = {}
        self._uids: dict[SessionId, int] = {}
        self._opening: dict[int, OpenSpan] = {}
        """Drawn at the end of what is published together: whether it is a fork is told behind it."""
        self._handover: Handover | None = None
        self._is_drawing = False
        self._now_ns = 0
        self._step = StepNo(0)
        self._handlers = self._make_handlers()

    def begin(self) -> None:
        """The server serves from now on."""
        self._is_drawing = True

    @property
    def num_open(self) -> int:
        """Spans that have begun and not ended: 0 at rest."""
        live = sum(not turn.is_ended for turn in self._turns.values())
        return 2 * live + self._steps.num_open + len(self._opening) + (self._handover is not None)

    @property
    def num_known(self) -> int:
        """Turns and sessions that something is remembered of: 0 when none is alive."""
        return len(self._turns) + len(self._sessions)

    def find_turn(self, session_id: SessionId | None, turn_id: TurnId) -> SpanContext | None:
        """The span of the newest turn of that name that is alive, or still has units. O(such turns)."""
        for turn in reversed(self._turns.values()):
            if turn.turn_id == turn_id and turn.session_id == session_id:
                return turn.span.context
        return None

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        if not self._is_drawing:
            return
        if not self._turns:
            self._tracer.timeline.sync()
        self._now_ns = self._tracer.timeline.unix_ns(now)
        handlers, in_prompt = self._handlers, self._in_prompt
        for _, event in events:
            if type(event) is TokensSampled:  # one a row and step
                if event.rid in in_prompt:
                    self._first_token(event)
            else:
                handle = handlers.get(type(event))
                if handle is not None:
                    handle(event)
        self._draw_handover()
        if self._opening:
            self._draw_openings()

    def step_timed(self, times: StepTimes) -> None:
        self._steps.time(times)

    def close(self) -> None:
        """The engine has gone: what it left without an end is ended as an error."""
        now_ns = self._tracer.timeline.now_ns()
        for turn in self._turns.values():
            if not turn.is_ended:
                turn.lose(_GONE, now_ns)
        self._turns.clear()
        self._in_prompt.clear()
        self._steps.lose(_GONE, now_ns)

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            TurnAccepted: self._accepted,
            TurnAdmitted: self._admitted,
            TurnRetracted: self._retracted,
            CommitRequested: self._commit_requested,
            TurnEnded: self._ended,
            KvMoved: self._moved,
            SlotChanged: self._slot_changed,
            SessionOpened: self._opened,
            SessionForked: self._forked,
            SessionTruncated: self._truncated,
            SessionClosed: self._closed,
            TurnsForgotten: self._forgotten,
            StepPlanned: self._planned,
            StepAnswered: self._answered,
        }

    # Turns

    def _accepted(self, event: TurnAccepted) -> None:
        caller = read_caller(Caller(event.trace_id, event.caller_span))
        session = self._session_of(event.session_id)
        uid = 0 if session is None else session.uid
        turn = self._turns[event.rid] = TurnDraw.accept(self._tracer, event, caller, uid, self._now_ns)
        if session is not None:
            turn.span.link(session.previous(event.parent), Relation.PREVIOUS_TURN)
            session.note_turn(turn.span.context)

    def _session_of(self, session_id: SessionId | None) -> SessionDraw | None:
        uid = None if session_id is None else self._uids.get(session_id)
        return None if uid is None else self._sessions.get(uid)

    def _admitted(self, event: TurnAdmitted) -> None:
        turn = self._turns.get(event.rid)
        if turn is None:
            return
        turn.admit(event, self._now_ns)
        self._in_prompt[event.rid] = turn
        session = self._sessions.get(turn.session_uid)
        if turn.kv is None and session is not None and event.attempt == 1:
            # Its KV is not lent to it: where it went is the reason for what has to be computed.
            turn.span.link(session.kv, Relation.PREVIOUS_HOLDER)

    def _first_token(self, event: TokensSampled) -> None:
        turn = self._in_prompt.pop(event.rid)
        turn.enter(SpanName.DECODE, self._now_ns)
        if event.output_start == 0:
            turn.span.add_event(EventName.FIRST_TOKEN, self._now_ns, {})

    def _retracted(self, event: TurnRetracted) -> None:
        turn = self._turns.get(event.rid)
        if turn is not None:
            self._in_prompt.pop(event.rid, None)
            turn.retract(event, self._now_ns)

    def _commit_requested(self, event: CommitRequested) -> None:
        turn = self._turns.get(event.rid)
        if turn is not None:
            turn.span.add_event(EventName.COMMIT, self._now_ns, {Attr.OUTPUT_TOKENS: event.output_len})

    def _ended(self, event: TurnEnded) -> None:
        self._draw_handover()
        turn = self._turns.get(event.rid)
        if turn is None:
            return
        self._in_prompt.pop(event.rid, None)
        turn.end(event, self._now_ns)
        session = self._sessions.get(turn.session_uid)
        if session is not None and event.is_committed:
            session.follow(event.turn_id, turn.span.context, event.history_len or 0)
        if not turn.num_units:
            del self._turns[event.rid]

    # Changes of owner

    def _moved(self, event: KvMoved) -> None:
        num_units = len(event.pages)
        self._steps.count(event)
        turn = self._turn_of(event.source, -num_units) or self._turn_of(event.target, num_units)
        if turn is not None:
            turn.count(event.move, event.pool, num_units)
        if event.move not in DRAWN:
            return
        handover = self._handover
        if handover is not None and handover.takes(event):
            handover.add(event)
        elif turn is None or turn.is_ended or event.move is not Move.RELEASE or event.pool not in _LEFT_BEHIND:
            self._draw_handover()
            self._begin_handover(event, turn)
        if turn is not None and turn.is_ended and not turn.num_units:
            self._turns.pop(Rid(event.source.name), None)

    def _turn_of(self, owner: Owner, num_units: int) -> TurnDraw | None:
        """The turn that an owner is; it has so many units more."""
        turn = self._turns.get(Rid(owner.name)) if owner.kind is _REQUEST else None
        if turn is not None:
            turn.num_units += num_units
        return turn

    def _begin_handover(self, event: KvMoved, turn: TurnDraw | None) -> None:
        source, target = event.source, event.target
        session = self._sessions.get(source.name) if source.kind is _SESSION else None
        if target.kind is _SESSION:
            session = self._sessions.get(target.name)
        if turn is None and session is None:
            parent = before = None
        elif turn is not None:
            parent = turn.span.context
            before = session.held if session is not None and source.kind is _SESSION else turn.holder
        else:
            assert session is not None, "one of the two is there"
            parent, before = session.home, session.held
        handover = self._handover = Handover(self._tracer, event, parent, before, self._now_ns)
        context = handover.span.context
        if session is not None:
            handover.span.attributes |= {Attr.SESSION_ID: session.session_id}
            if source.kind is _SESSION and session.kv_len:
                handover.span.attributes[Attr.KV_TOKENS] = session.kv_len
        if turn is not None:
            handover.span.attributes[Attr.TURN_ID] = turn.turn_id
        if event.move is Move.LEND and turn is not None:
            turn.kv = context
        elif event.move is not Move.RELEASE and session is not None:
            session.kv = context
            if target.kind is _SESSION:
                session.held = context
            session.is_demoted = event.move is Move.DEMOTE
        if event.move is Move.RETURN and turn is not None:
            turn.kv = None

    def _draw_handover(self) -> None:
        if self._handover is not None:
            self._handover.end(self._tracer, self._now_ns)
            self._handover = None

    def _slot_changed(self, event: SlotChanged) -> None:
        session = self._sessions.get(event.uid)
        if session is None:
            return
        handover, slot = self._handover, Owner(_SESSION, event.uid)
        if event.target is SlotState.HELD:
            session.kv_len, session.is_demoted = event.kv_committed_len, False
        if handover is not None and handover.is_of(slot):
            if handover.is_to(slot):
                handover.span.attributes[Attr.KV_TOKENS] = event.kv_committed_len
            facts: dict[str, Value] = {Attr.SLOT_FROM: event.source, Attr.SLOT_TO: event.target}
            handover.span.add_event(EventName.SLOT, self._now_ns, facts)
            if event.target is SlotState.DEMOTED and not session.is_demoted:
                session.kv = handover.span.context  # it had nothing that the cache could take
        self._draw_handover()
        if event.target is SlotState.RELEASED:
            session.has_slot = False
            self._forget(session)

    # Sessions

    def _opened(self, event: SessionOpened) -> None:
        caller = read_caller(Caller(event.trace_id, event.caller_span))
        span = self._opening[event.uid] = draw_opening(self._tracer, event, caller, self._now_ns)
        self._sessions[event.uid] = SessionDraw(
            event.session_id, event.uid, event.streaming, span.context, has_slot=event.streaming
        )
        self._uids[event.session_id] = event.uid

    def _forked(self, event: SessionForked) -> None:
        self._draw_handover()
        fork, source = self._sessions.get(event.uid), self._sessions.get(event.source_uid)
        if fork is None or source is None:
            return
        fork.inherit(source, event.history_len)
        span = self._opening.get(event.uid)
        if span is not None:
            span.attributes |= {Attr.HISTORY_TOKENS: event.history_len, Attr.KV_TOKENS: event.kv_len}
            span.link(fork.last_turn or source.opened, Relation.FORKED_FROM)

    def _truncated(self, event: SessionTruncated) -> None:
        self._draw_handover()
        session = self._sessions.get(event.uid)
        if session is not None:
            session.cut(event.history_len)

    def _draw_openings(self) -> None:
        for span in self._opening.values():
            self._tracer.end(span.end(self._now_ns))
        self._opening.clear()

    def _closed(self, event: SessionClosed) -> None:
        self._draw_handover()
        session = self._sessions.get(event.uid)
        if session is None:
            return
        caller = read_caller(Caller(event.trace_id, event.caller_span))
        self._tracer.end(draw_closing(self._tracer, session, event, caller, self._now_ns).end(self._now_ns))
        session.is_open = False
        if self._uids.get(event.session_id) == event.uid:
            del self._uids[event.session_id]
        self._forget(session)

    def _forget(self, session: SessionDraw) -> None:
        if not (session.is_open or session.has_slot):
            self._sessions.pop(session.uid, None)

    def _forgotten(self, event: TurnsForgotten) -> None:
        session = self._session_of(event.session_id)
        if session is not None:
            session.forget(event.turn_ids)

    # Steps

    def _planned(self, event: StepPlanned) -> None:
        self._draw_handover()
        self._steps.plan(event, self._turns, self._now_ns)
        if self._in_prompt:
            for rid, start, num_tokens in event.shares:
                turn = self._in_prompt.get(rid)
                if turn is not None:
                    turn.chunk(start, num_tokens, event.step, self._now_ns)

    def _answered(self, event: StepAnswered) -> None:
        self._steps.answer(event, self._turns, self._now_ns)
