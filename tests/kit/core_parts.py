"""Cores for tests: its parts, wired as the facade wires them but each within reach, and a whole one on a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.core.books import Books
from engine.core.commands import (
    Abort,
    AbortReason,
    Applied,
    Close,
    Command,
    CommitAck,
    FinishAt,
    FinishReason,
    Open,
    Submit,
)
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import Refusal
from engine.core.events import CommitRequested, CoreEvent, EventLog, TokensSampled, TurnAdmitted, TurnEnded
from engine.core.findings import CheckLevel
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.ownership import PoolKind
from engine.core.plan import StepPlan
from engine.core.pools import Pools
from engine.core.queues import Queues
from engine.core.radix import RadixTree
from engine.core.radix_cache import RadixCache
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.sampling import GREEDY
from engine.core.session_cache import SessionAwareCache
from engine.core.sessions import Session, SessionController
from engine.core.snapshot import SessionState
from tests.kit.book import Book
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel

Told = TypeVar("Told", bound=CoreEvent)


@dataclass(frozen=True, slots=True)
class CoreParts:
    page_size: int
    log: EventLog
    pools: Pools
    table: PageTable
    tree: RadixTree
    radix: RadixCache
    slots: SessionAwareCache
    queues: Queues
    sessions: SessionController
    books: Books

    def events(self, *kinds: type) -> list[CoreEvent]:
        """What was told since the last call, of these kinds (all without any)."""
        told = [numbered.event for numbered in self.log.take()]
        return [event for event in told if not kinds or isinstance(event, kinds)]

    def open_session(self, name: str = "s") -> Session:
        """A streaming session with an empty slot."""
        session = self.sessions.open(Open(SessionId(name), streaming=True), 0.0)
        self.slots.open_session(session)
        return session

    def request(self, rid: int, ids: list[int], session: Session | None = None, base_len: int = 0) -> Request:
        """A request among the live ones, that waits and holds nothing."""
        request = Request(
            rid=Rid(rid),
            turn_id=TurnId(f"t{rid}"),
            session=session,
            namespace=session.namespace if session is not None else "",
            ids=bytearray(pack_ids(ids)),
            base_len=base_len,
            prompt_len=len(ids),
            max_tokens=8,
            ignore_eos=False,
            sampling=GREEDY,
            rank=(rid, rid),
            trace_id="",
        )
        self.queues.live[request.rid] = request
        self.queues.wait(request)
        return request


def make_parts(
    page_size: int = 4,
    pool_pages: int = 17,
    num_rows: int = 5,
    *,
    window: int | None = None,
    swa_pages: int = 0,
    state_slots: int = 0,
) -> CoreParts:
    """Pools of `pool_pages` - 1 pages and `num_rows` - 1 rows; with a window and states those of a hybrid model.

    States may be cached every page, and a turn may be cut back by two tokens.
    """
    log = EventLog()
    pools = Pools(pool_pages, num_rows, log, swa_pages=swa_pages, state_slots=state_slots)
    table = PageTable(num_rows, pages_per_row=pool_pages, has_swa=pools.has_swa)
    tree = RadixTree(page_size, pools, window)
    radix = RadixCache(tree.matcher, 2, page_size, pools, table, tree)
    slots = SessionAwareCache(radix, page_size, pools, table, tree, log)
    queues = Queues()
    config = CoreConfig(page_size, pool_pages, num_rows, context_len=64, vocab_size=1000)
    sessions = SessionController(config, log)
    books = Books(tree.matcher, pools, table, tree, queues, slots.slots, slots.idle, sessions.all)
    return CoreParts(page_size, log, pools, table, tree, radix, slots, queues, sessions, books)


@dataclass(frozen=True, slots=True)
class ScriptedModel(ShadowModel):
    """Says what a script tells for each position, so that a test knows which guesses are right.

    The digest still depends on the whole history: a wrong page shows.
    """

    script: tuple[int, ...] = ()
    """The id at each position, those of the prompt included. Behind its end it begins anew."""

    def extend(self, digest: int, token_id: int, position: int) -> int:
        return ShadowModel.extend(self, digest >> 16, token_id, position) << 16 | position + 1

    def next_id(self, digest: int) -> int:
        return self.script[(digest & 0xFFFF) % len(self.script)]


class CoreRig:
    """A whole core that drives a shadow device. After each call that tells something every law is checked."""

    def __init__(self, config: CoreConfig, model: ShadowModel | None = None, *, is_ack_automatic: bool = True) -> None:
        self.core = Core(config)
        self.told: list[CoreEvent] = []
        """All events so far."""
        self.plans: list[StepPlan] = []
        """All plans so far. Their page tables are live rows: not to be read."""
        self._book = Book.of(config)
        self._device = ShadowDevice(
            model or ShadowModel(config.vocab_size),
            page_size=config.page_size,
            pool_pages=config.pool_pages,
            num_rows=config.num_rows,
            swa_pages=config.swa_pages,
            state_slots=config.state_slots,
            book=self._book,
        )
        self._is_ack_automatic = is_ack_automatic
        self._rids = 0
        self.now = 0.0

    # Commands

    def apply(self, command: Command) -> Applied:
        """Raises Refusal, after it made sure that nothing was told and nothing changed."""
        before = self.core.snapshot(), self.core.owners(PoolKind.FULL)
        try:
            lengths = self.core.apply(command, self.now)
        except Refusal:
            assert self.core.take_events() == (), f"{command} was refused, and something was told"
            after = self.core.snapshot(), self.core.owners(PoolKind.FULL)
            assert after == before, f"{command} was refused, and something changed"
            raise
        self._settle()
        return lengths

    def open(self, name: str, *, streaming: bool = False, priority: int = 0) -> None:
        self.apply(Open(SessionId(name), streaming, priority=priority))

    def command(self, turn: str, ids: Sequence[int], session: str | None = None) -> Submit:
        """A turn that generates two ids, whatever they are, with a rid of its own. For `replace` and `submit`."""
        self._rids += 1
        session_id = SessionId(session) if session is not None else None
        return Submit(Rid(self._rids), TurnId(turn), pack_ids(ids), session_id, max_tokens=2, ignore_eos=True)

    def submit(self, command: Submit) -> Rid:
        self.apply(command)
        return command.rid

    def cancel(self, rid: Rid, reason: AbortReason = AbortReason.CLIENT) -> None:
        self.apply(Abort(rid, reason))

    def finish_at(self, rid: Rid, output_len: int) -> None:
        self.apply(FinishAt(rid, output_len, FinishReason.STOP))

    def close(self, name: str, *, drain: bool = False) -> None:
        self.apply(Close(SessionId(name), drain))

    def refusal(self, command: Command) -> Refusal:
        """Of a command that is refused and changes nothing."""
        try:
            self.apply(command)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"{command} was accepted")

    # Steps

    def plan(self) -> StepPlan | None:
        plan = self.core.next_plan(self.now)
        self._settle()
        if plan is not None:
            self._device.submit(plan)
            self.plans.append(plan)
        return plan

    def answer(self, failure: str | None = None) -> None:
        """Answers the oldest plan in flight."""
        self.core.advance(self._device.answer() if failure is None else self._device.fail(failure), self.now)
        self._settle()

    def step(self, times: int = 1) -> None:
        """Plans, then answers."""
        for _ in range(times):
            assert self.plan() is not None, "there was nothing to plan"
            self.answer()

    def run(self, steps_max: int = 2000) -> None:
        """Plans as many steps ahead as the core allows, and answers the oldest, until nothing is left to do."""
        for _ in range(steps_max):
            if not self.core.has_work:
                return
            if self.plan() is None:
                assert self.core.num_in_flight > 0, "turns wait, and nothing is planned or in flight"
                self.answer()
        raise AssertionError(f"still busy after {steps_max} steps")

    # What was told

    def take(self) -> list[CoreEvent]:
        """What was told since the last call, and forgets it."""
        taken, self.told = self.told, []
        return taken

    def of(self, kind: type[Told]) -> list[Told]:
        """Events of one kind, in order."""
        return [event for event in self.told if isinstance(event, kind)]

    def output(self, rid: Rid) -> list[int]:
        """All ids that a turn was given."""
        return [token for event in self.of(TokensSampled) if event.rid == rid for token in event.token_ids]

    def ending(self, rid: Rid) -> TurnEnded:
        (end,) = (event for event in self.of(TurnEnded) if event.rid == rid)
        return end

    def admissions(self) -> list[Rid]:
        """Who came in, in order, retracted ones each time anew."""
        return [event.rid for event in self.of(TurnAdmitted)]

    def slot(self, name: str) -> SessionState:
        return next(state for state in self.core.snapshot().sessions if state.session_id == name)

    def _settle(self) -> None:
        """Takes what was told into the books, checks them, and acknowledges what is to be stored."""
        events = [numbered.event for numbered in self.core.take_events()]
        if not events:
            return  # no change goes untold
        self.told += events
        self._book.replay(events)
        self._device.observe(events)
        report = self.core.check(CheckLevel.FULL)
        assert report.is_clean, report.findings
        for books in self.core.snapshot().pools:
            assert self._book.terms(books.pool) == books
            assert self._book.owners(books.pool) == self.core.owners(books.pool)
        assert self._device.violations == []
        for event in events:
            if self._is_ack_automatic and isinstance(event, CommitRequested):
                self.apply(CommitAck(event.rid))
