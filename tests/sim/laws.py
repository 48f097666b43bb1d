"""Laws that are read off the core itself after each call, and compared with what its events have told."""

from collections.abc import Collection, Mapping, Sequence

from engine.core.core import Core
from engine.core.errors import Refusal
from engine.core.events import CoreEvent, KvMoved, TurnRetracted
from engine.core.ids import SessionId, pack_ids, pages_for
from engine.core.invariants import CheckLevel
from engine.core.ownership import Owner, OwnerKind, PoolKind
from engine.core.plan import PlanRow, StepPlan
from engine.core.snapshot import PoolBooks, Snapshot, TurnState
from engine.core.turns import Point
from tests.kit.book import Book
from tests.kit.shadow_device import QueuedPlan
from tests.sim.contents import checkpoint_interval
from tests.sim.drafts import check_drafts
from tests.sim.oracles import Oracles
from tests.sim.records import OracleFired, SessionRecord, TurnRecord, expect

OWNERS_UNITS = 200
"""Of the check that goes round the owners: a few calls a round in these pools."""


def check_state(core: Core, book: Book, oracles: Oracles) -> None:
    """The core's own full check, its books against the replayed ones, its turns and sessions against the records."""
    report = core.check(CheckLevel.FULL)
    expect(report.is_clean, "check", f"{report.findings}")
    owners = core.check_owners_slice(OWNERS_UNITS)
    expect(owners.is_clean, "check", f"{owners.findings}")
    snapshot = core.snapshot()
    for books in snapshot.pools:
        _check_books(books, book.terms(books.pool))
        _check_owners(core, book, books.pool)
    expect(snapshot.in_flight == core.num_in_flight, "plan", "snapshot and core disagree on plans in flight")
    _check_turns(core, snapshot, oracles)
    _check_sessions(core, snapshot, oracles)


def _check_books(books: PoolBooks, terms: PoolBooks) -> None:
    expect(books == terms, "book", f"the core says {books}, its events {terms}")
    expect(terms.is_balanced, "book", f"{terms} does not add up")


def _check_owners(core: Core, book: Book, pool: PoolKind) -> None:
    told, replayed = core.owners(pool)[1:], book.owners(pool)[1:]
    if told != replayed:
        pairs = enumerate(zip(told, replayed, strict=True), 1)
        parted = [(unit, str(one), str(other)) for unit, (one, other) in pairs if one != other]
        expect(False, "book", f"{pool}: owners by the core and by its events: {parted}")


def check_moves(
    events: Sequence[CoreEvent], steps: int, traces: Mapping[Owner, Collection[str]], *, is_planning: bool = False
) -> None:
    """Each move names the newest plan, and the trace of the request that it is from or to, or else of the session.

    `steps`: plans made before these events. `traces`: what each owner's may be, of a session that of its opening or of
    one of its turns. `is_planning`: the next one, which may come to nothing, is being made.
    """
    step = steps + 1 if is_planning else steps
    for event in events:
        if isinstance(event, KvMoved):
            expect(event.step == step, "move", f"{event}: the newest plan is {step}")
            owners = sorted((event.source, event.target), key=lambda owner: owner.kind is not OwnerKind.REQUEST)
            known = next((traces[owner] for owner in owners if any(traces.get(owner, ()))), ("",))
            expect(event.trace_id in known, "move", f"{event}: the traces are {known}")


def _check_turns(core: Core, snapshot: Snapshot, oracles: Oracles) -> None:
    states = {state.rid: state for state in snapshot.turns}
    for turn in oracles.live():
        name, state = f"rid {turn.rid}", states.get(turn.rid)
        told = state.output_len if state is not None else None
        expected = turn.cut[1] if turn.cut is not None else len(turn.output)
        expect(told == expected, "ending", f"{name}: {told} ids in the snapshot, not {expected}")
        named = (state.session_id, state.turn_id) if state is not None else None
        expect(named == (turn.session_id, turn.turn_id), "ending", f"{name}: the snapshot names it {named}")
        if state is None or not turn.has_sampled or not turn.is_running or turn.must_end_as is not None:
            continue
        if core.config.prefix_cache and not core.config.state_slots:
            _check_shared(turn, state, oracles, core.config.page_size)
        if state.in_flight == 0:
            _check_decoding(turn, state, core.config.page_size)


def _check_shared(turn: TurnRecord, state: TurnState, oracles: Oracles, page_size: int) -> None:
    """A decoding turn's own pages begin behind its prompt: the cache has what is before.

    Not so in a streaming session after its first turn, whose pages stay with the slot.
    """
    session = oracles.sessions.get(turn.session_id) if turn.session_id is not None else None
    if session is not None and session.streaming and turn.base_len > 0:
        return
    to_come = state.in_flight and max(state.in_flight, turn.command.draft_tokens)
    reach = pages_for(turn.context_len + to_come, page_size)
    most = reach - len(turn.prompt) // page_size
    expect(state.pages <= most, "shared", f"rid {turn.rid}: {state.pages} pages of its own, at most {most} are due")


def _check_decoding(turn: TurnRecord, state: TurnState, page_size: int) -> None:
    """With nothing in flight it has the KV of all its ids but the last, and not a page more."""
    expected = turn.context_len - 1
    kv_len = state.kv_committed_len
    expect(kv_len == expected, "draft", f"rid {turn.rid}: KV of {kv_len} tokens is committed, not of {expected}")
    most = pages_for(expected, page_size)
    expect(state.pages <= most, "draft", f"rid {turn.rid}: {state.pages} pages of its own, {most} are enough")


def _check_sessions(core: Core, snapshot: Snapshot, oracles: Oracles) -> None:
    states = {state.session_id: state for state in snapshot.sessions}
    expect(list(states) == list(oracles.sessions), "ending", f"open sessions: {list(states)}")
    for session_id, session in oracles.sessions.items():
        state, expected = states[session_id], len(session.history)
        expect(state.history_len == expected, "rollback", f"{state}: {expected} ids are committed")
        expect(state.live_turns == len(session.live), "ending", f"{state}: {list(session.live)} run or wait")
        if session.streaming and not session.is_closing:
            kept = _find_base(core, session_id, Point())
            expect(kept == pack_ids(session.history), "rollback", f"{session_id}: not the history that was told")


def _find_base(core: Core, session_id: SessionId, point: Point) -> bytes:
    try:
        return core.find_base(session_id, point)
    except Refusal as refusal:
        raise OracleFired("ending", f"{session_id} is open, and refuses {point}: {refusal.reason}") from refusal


def check_paths(core: Core, session: SessionRecord) -> None:
    """All branches of an ordinary session are what was told."""
    for turn_id, node in session.nodes.items():
        kept = _find_base(core, session.session_id, Point(turn_id))
        what = f"{session.session_id}: the path to {turn_id} is not what was told"
        expect(kept == pack_ids(node.path), "rollback", what)


def check_fork_owns_nothing(book: Book, session: SessionRecord) -> None:
    """A fork locks what it shares: no page and no row is its own."""
    owner = Owner(OwnerKind.SESSION, session.uid)
    owned = {pool: book.owned(pool, owner) for pool in book.pools}
    expect(not any(owned.values()), "fork", f"{session.session_id} was just forked, and owns {owned}")


def check_admissions(plan: StepPlan | None, oracles: Oracles) -> None:
    """Who is admitted is in the very next plan: nobody takes a row, or makes others give way, without room to run."""
    planned = [row.rid for row in plan.rows] if plan is not None else []
    idle = [rid for rid in oracles.admitted if rid not in planned]
    expect(not idle, "plan", f"rids {idle} were admitted, but do not run")


def check_plan(plan: StepPlan, core: Core, oracles: Oracles, queued: Sequence[QueuedPlan]) -> None:
    """A plan holds running turns only, and never more than its limits. `queued`: those before it."""
    config = core.config
    expect(plan.num_tokens <= config.step_tokens, "plan", f"{plan.num_tokens} tokens in a step")
    expect(len(plan.rows) <= config.running_max, "plan", f"{len(plan.rows)} rows in a step")
    expect(not plan.copies, "plan", "nothing is copied: forks compute their tail anew")
    for row in plan.rows:
        turn = oracles.turns.get(row.rid)
        is_fit = turn is not None and turn.is_running
        expect(is_fit, "plan", f"rid {row.rid} is planned, but does not run")
        assert turn is not None
        _check_row(row, turn, core)
        is_alone = all(other.row.rid != row.rid for before in queued for other in before.rows)
        if row.num_samples > 1:
            check_drafts(row, turn, config, is_alone=is_alone)
        expect(is_alone or turn.drafts == (), "draft", f"rid {row.rid}: planned on top of guesses")


def _check_row(row: PlanRow, turn: TurnRecord, core: Core) -> None:
    name = f"rid {row.rid}"
    chunk_len = row.query_len - max(0, row.num_samples - 1)
    expect(chunk_len <= core.config.chunk_tokens, "plan", f"{name}: a chunk of {chunk_len}")
    expect(row.sampling == turn.sampling, "plan", f"{name}: {row.sampling}, asked for {turn.sampling}")
    last_len = len(turn.prompt) + turn.max_tokens - 1
    is_due = row.start_len + row.query_len <= last_len
    expect(is_due, "plan", f"{name}: {row.start_len}+{row.query_len} is past its last input at {last_len}")
    if core.config.state_slots:
        border = len(turn.prompt) // checkpoint_interval(core.config) * checkpoint_interval(core.config)
        is_over = row.start_len < border < row.start_len + row.query_len
        expect(
            not is_over, "plan", f"{name}: {row.start_len}+{row.query_len} runs over the prompt's checkpoint {border}"
        )
    expect(row.epoch == turn.retractions, "plan", f"{name}: epoch {row.epoch} after {turn.retractions}")


def check_retractions(events: Sequence[CoreEvent], draining: set[Owner], oracles: Oracles) -> None:
    """Nobody gives way while pages are on their way back. `draining`: who had some before these events.

    Those of a turn that waits for its acknowledgement do not come back by themselves.
    """
    rids = [event.rid for event in events if isinstance(event, TurnRetracted)]
    if rids:
        coming = draining - {Owner(OwnerKind.REQUEST, turn.rid) for turn in oracles.uncommitted()}
        expect(
            not coming, "retraction", f"rids {rids} give way while pages of {[str(owner) for owner in coming]} drain"
        )


def check_fence(events: Sequence[CoreEvent], queued: Sequence[QueuedPlan]) -> None:
    """Nothing that a plan in flight touches changes hands, but for pages it only reads that go to the cache."""
    for event in events:
        if isinstance(event, KvMoved):
            for plan in queued:
                _check_untouched(event, plan)


def _check_untouched(event: KvMoved, queued: QueuedPlan) -> None:
    for row in queued.rows:
        written, read = row.touched[event.pool]
        touched = written if event.target.kind is OwnerKind.CACHE else written + read
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
