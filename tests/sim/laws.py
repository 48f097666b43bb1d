"""Laws that are read off the core itself after each call, and compared with what its events have told."""

from collections.abc import Sequence
from dataclasses import replace

from engine.core.core import Core
from engine.core.events import CoreEvent, KvMoved
from engine.core.ids import pack_ids, pages_for
from engine.core.invariants import CheckLevel
from engine.core.ownership import OwnerKind, PoolKind
from engine.core.plan import StepPlan
from engine.core.snapshot import PoolBooks, Snapshot, TurnState
from tests.kit.book import Book
from tests.kit.shadow_device import QueuedPlan
from tests.sim.oracles import Oracles
from tests.sim.records import TurnRecord, expect


def check_state(core: Core, book: Book, oracles: Oracles) -> None:
    """The core's own full check, its books against the replayed ones, its turns and sessions against the records."""
    report = core.check(CheckLevel.FULL)
    expect(report.is_clean, "check", f"{report.findings}")
    snapshot = core.snapshot()
    for books in snapshot.pools:
        _check_books(books, book.terms(books.pool))
    expect(snapshot.in_flight == core.num_in_flight, "plan", "snapshot and core disagree on plans in flight")
    _check_turns(core, snapshot, oracles)
    _check_sessions(core, snapshot, oracles)


def _check_books(books: PoolBooks, terms: PoolBooks) -> None:
    # The pages of a turn that was broken off in flight drain too, but only its end is told, not each page.
    expect(terms.draining <= books.draining, "book", f"{terms.draining} pages drain by events: {books}")
    told = replace(books, draining=terms.draining)
    expect(told == terms, "book", f"the core says {books}, its events {terms}")
    expect(terms.is_balanced, "book", f"{terms} does not add up")


def _check_turns(core: Core, snapshot: Snapshot, oracles: Oracles) -> None:
    states = {state.rid: state for state in snapshot.turns}
    for turn in oracles.live():
        name, state = f"rid {turn.rid}", states.get(turn.rid)
        told = state.output_len if state is not None else None
        expected = turn.cut[1] if turn.cut is not None else len(turn.output)
        expect(told == expected, "ending", f"{name}: {told} ids in the snapshot, not {expected}")
        named = (state.session_id, state.turn_id) if state is not None else None
        expect(named == (turn.session_id, turn.turn_id), "ending", f"{name}: the snapshot names it {named}")
        if state is not None and core.config.prefix_cache:
            _check_shared(turn, state, oracles, core.config.page_size)


def _check_shared(turn: TurnRecord, state: TurnState, oracles: Oracles, page_size: int) -> None:
    """A running turn's own pages begin behind its prompt, once that is computed: the cache has what is before.

    Not so in a streaming session after its first turn, whose pages stay with the slot.
    """
    session = oracles.sessions.get(turn.session_id) if turn.session_id is not None else None
    is_slots = session is not None and session.streaming and turn.base_len > 0
    is_decoding = turn.has_sampled and not turn.is_waiting and turn.cut is None and turn.must_end_as is None
    if is_slots or not is_decoding:
        return
    reach = pages_for(turn.context_len + state.in_flight, page_size)
    most = reach - len(turn.prompt) // page_size
    expect(state.pages <= most, "shared", f"rid {turn.rid}: {state.pages} pages of its own, at most {most} are due")


def _check_sessions(core: Core, snapshot: Snapshot, oracles: Oracles) -> None:
    states = {state.session_id: state for state in snapshot.sessions}
    expect(list(states) == list(oracles.sessions), "ending", f"open sessions: {list(states)}")
    for session_id, session in oracles.sessions.items():
        if not session.streaming:
            continue
        state, expected = states[session_id], len(session.history)
        expect(state.history_len == expected, "rollback", f"{state}: {expected} ids are committed")
        if not session.is_closing:
            kept = core.find_history(session_id, None)
            expect(kept == pack_ids(session.history), "rollback", f"{session_id}: not the history that was told")


def check_admissions(plan: StepPlan | None, oracles: Oracles) -> None:
    """Who is admitted is in the very next plan: nobody takes a row, or makes others give way, without room to run."""
    planned = [row.rid for row in plan.rows] if plan is not None else []
    idle = [rid for rid in oracles.admitted if rid not in planned]
    expect(not idle, "plan", f"rids {idle} were admitted, but do not run")


def check_plan(plan: StepPlan, core: Core, oracles: Oracles) -> None:
    """A plan holds running turns only, and never more than its limits."""
    config = core.config
    expect(plan.num_tokens <= config.step_tokens, "plan", f"{plan.num_tokens} tokens in a step")
    expect(len(plan.rows) <= config.running_max, "plan", f"{len(plan.rows)} rows in a step")
    for row in plan.rows:
        turn = oracles.turns.get(row.rid)
        is_fit = turn is not None and turn.is_live and turn.cut is None and not turn.is_waiting
        expect(is_fit, "plan", f"rid {row.rid} is planned, but does not run")
        assert turn is not None
        expect(row.query_len <= config.chunk_tokens, "plan", f"rid {row.rid}: a chunk of {row.query_len}")
        expect(row.sampling == turn.sampling, "plan", f"rid {row.rid}: {row.sampling}, asked for {turn.sampling}")
        last_len = len(turn.prompt) + turn.max_tokens - 1
        is_due = row.start_len + row.query_len <= last_len
        expect(is_due, "plan", f"rid {row.rid}: {row.start_len}+{row.query_len} is past its last input at {last_len}")
        expect(row.epoch == turn.retractions, "plan", f"rid {row.rid}: epoch {row.epoch} after {turn.retractions}")


def check_fence(events: Sequence[CoreEvent], queued: Sequence[QueuedPlan]) -> None:
    """Nothing that a plan in flight touches changes hands, but for pages it only reads that go to the cache."""
    for event in events:
        if isinstance(event, KvMoved):
            for plan in queued:
                _check_untouched(event, plan)


def _check_untouched(event: KvMoved, queued: QueuedPlan) -> None:
    for row in queued.rows:
        if event.pool is PoolKind.ROWS:
            touched: tuple[int, ...] = (row.row.req_pool_idx,)
        else:
            touched = row.written_pages if event.target.kind is OwnerKind.CACHE else row.pages
        hit = [unit for unit in event.pages if unit in touched]
        expect(not hit, "fence", f"{event.pool} {hit} moved ({event.move}) under step {queued.plan.step} in flight")


def check_all_free(core: Core) -> None:
    """After everything ended and was closed: nothing is held, all of every pool is free or evictable."""
    snapshot = core.snapshot()
    for books in snapshot.pools:
        left = (books.protected, books.session_held, books.uncached, books.draining)
        expect(left == (0, 0, 0, 0), "free", f"after everything was closed: {books}")
        expect(books.available + books.evictable == books.total, "free", f"after everything was closed: {books}")
    expect(not snapshot.turns and not snapshot.sessions, "free", f"left: {snapshot.turns} {snapshot.sessions}")
