"""Laws of windows and states: how much of them anybody may have, whatever a turn does. Written from the design."""

from collections import Counter
from collections.abc import Sequence

from engine.core.config import CoreConfig
from engine.core.events import (
    CoreEvent,
    KvMoved,
    Protected,
    SlotState,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
)
from engine.core.ids import pages_for
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.core.snapshot import SessionState, Snapshot, TurnState
from tests.kit.book import Book
from tests.kit.shadow_device import QueuedPlan
from tests.sim.contents import first_seen
from tests.sim.records import expect

TURN_STATES_MAX = 4
"""Of a turn: the last commit's, a checkpoint, and two that its steps write in turn."""
IDLE_STATES_MAX = 2
"""Of a slot between turns: the last commit's and a checkpoint."""
CUT_BACK_MAX = 2
"""Tokens of its answer that a turn may be cut back by, besides drafts, and go on without its window again."""


def check_kinds(
    config: CoreConfig, snapshot: Snapshot, book: Book, queued: Sequence[QueuedPlan], marks: Counter[str]
) -> None:
    """Nobody has more of windows and states than a length of history can ask for."""
    if config.window is None and not config.state_slots:
        return
    for session in snapshot.sessions:
        if session.slot is SlotState.HELD:
            _check_idle(config, session, book)
    ordinary = {session.session_id for session in snapshot.sessions if not session.streaming}
    for turn in snapshot.turns:
        may_be_lent = turn.session_id is not None and turn.session_id not in ordinary
        _check_turn(config, turn, book, queued, marks, may_be_lent=may_be_lent)


def _window_pages(config: CoreConfig) -> int:
    """Pages that the window of one token is on, and the page that the token itself goes to."""
    return pages_for((config.window or 1) - 1, config.page_size) + 1


def _check_idle(config: CoreConfig, session: SessionState, book: Book) -> None:
    """It keeps the window of its next token, from the last page border on: a turn cut back to there has its own."""
    owner = Owner(OwnerKind.SESSION, session.number)
    if config.window is not None:
        length, page_size = session.kv_committed_len, config.page_size
        first_page = first_seen(length // page_size * page_size, config.window) // page_size
        most = pages_for(length, page_size) - first_page
        most += _window_pages(config) if config.state_slots else 0  # and that of the checkpoint
        num_pages = len(book.owned(PoolKind.SWA, owner))
        expect(num_pages <= most, "bound", f"{session.session_id} is idle with {num_pages} SWA pages, {most} at most")
    if config.state_slots:
        num_states = len(book.owned(PoolKind.MAMBA, owner))
        expect(num_states <= IDLE_STATES_MAX, "bound", f"{session.session_id} is idle with {num_states} states")


def _check_turn(
    config: CoreConfig,
    turn: TurnState,
    book: Book,
    queued: Sequence[QueuedPlan],
    marks: Counter[str],
    *,
    may_be_lent: bool,
) -> None:
    owner, name = Owner(OwnerKind.REQUEST, turn.rid), f"rid {turn.rid}"
    if config.window is not None:
        num_pages = len(book.owned(PoolKind.SWA, owner))
        rows = [row.row for plan in queued for row in plan.rows if row.row.rid == turn.rid]
        stop_len = max((row.start_len + row.query_len for row in rows), default=turn.kv_committed_len)
        drafts_max = 0 if config.state_slots else config.draft_tokens_max
        in_flight = stop_len - turn.kv_committed_len
        tokens = config.window + in_flight + CUT_BACK_MAX + drafts_max
        alone = pages_for(tokens, config.page_size) + 2
        most = alone + _window_pages(config) * (may_be_lent + (config.state_slots > 0))
        expect(num_pages <= most, "bound", f"{name} has {num_pages} SWA pages, {most} at most: {in_flight} in flight")
        marks["pinned window"] += num_pages > alone
    if config.state_slots:
        num_states = len(book.owned(PoolKind.MAMBA, owner))
        expect(num_states <= TURN_STATES_MAX, "bound", f"{name} has {num_states} states")
        marks["four states"] += num_states == TURN_STATES_MAX


def check_waiting(events: Sequence[CoreEvent]) -> None:
    """Planning moves nothing for a turn that stays where it is: something is granted, admitted or retracted."""
    is_moved = any(isinstance(event, KvMoved | Protected) for event in events)
    grants = [event for event in events if isinstance(event, KvMoved) and event.move is Move.GRANT]
    changes = [event for event in events if isinstance(event, TurnAdmitted | TurnRetracted)]
    expect(not is_moved or bool(grants or changes), "plan", f"moved for nobody: {events}")


def left_behind(events: Sequence[CoreEvent], running: Sequence[int]) -> int:
    """How many moves gave up windows of turns that go on. `running`: rids that ran before, without drafts."""
    over = [event.rid for event in events if isinstance(event, TurnEnded | TurnRetracted)]
    return sum(
        event.pool is PoolKind.SWA
        and event.move is Move.RELEASE
        and event.source.kind is OwnerKind.REQUEST
        and event.source.name in running
        and event.source.name not in over
        for event in events
        if isinstance(event, KvMoved)
    )
