"""A core under watch: around each call, what it told goes to the books and the oracles, then every law is checked."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.commands import Applied, Command, Flush, Flushed, Fork, Lengths, Open, Submit, Truncate
from engine.core.core import Core
from engine.core.errors import InvariantViolation, Refusal
from engine.core.events import CoreEvent, Draining, KvMoved, SessionOpened, TurnAccepted
from engine.core.ids import SessionId
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.core.plan import StepOutcome, StepPlan
from tests.kit.book import Book, BookError
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel
from tests.sim.kinds import check_kinds, check_waiting, left_behind
from tests.sim.laws import check_admissions, check_fence, check_moves, check_plan, check_retractions, check_state
from tests.sim.oracles import Oracles
from tests.sim.records import OracleFired, expect
from tests.sim.refusals import Expected

CRASHES = (
    InvariantViolation,
    AssertionError,
    KeyError,
    IndexError,
    ValueError,
    AttributeError,
    TypeError,
    NotImplementedError,
)


class WatchedCore:
    """Every method raises OracleFired when a law is broken; nothing is caught and carried on."""

    def __init__(self, core: Core, model: ShadowModel, device: ShadowDevice | None = None) -> None:
        """`device`: one that misbehaves on purpose; it must share no book."""
        config = core.config
        self.core = core
        self.book = Book.of(config)
        self.device = device or ShadowDevice(
            model,
            page_size=config.page_size,
            pool_pages=config.pool_pages,
            num_rows=config.num_rows,
            swa_pages=config.swa_pages,
            state_slots=config.state_slots,
            book=self.book,
        )
        self.oracles = Oracles(config, model, self.device, self.book)
        self.now = 0.0
        self.lines: list[str] = []
        """What was done, one line an operation, for people."""
        self.told: list[CoreEvent | Refusal | StepPlan] = []
        """Events, refusals and plans, in order."""
        self._next_seq = 1
        self._steps = 0
        self._traces: dict[Owner, list[str]] = {}
        self._sessions: dict[SessionId | None, Owner] = {}
        self._hash = hashlib.sha256()

    @property
    def marks(self) -> Counter[str]:
        """What happened, counted."""
        return self.oracles.marks

    @property
    def digest(self) -> str:
        """Of all events so far."""
        return self._hash.hexdigest()

    def attempt(self, command: Open | Fork | Truncate | Submit, expected: Expected) -> bool:
        """Applies a command that may be refused. True when it was taken."""
        must, may = expected
        before = self.core.snapshot()
        try:
            with self._call(f"{type(command).__name__}"):
                answer = self.core.apply(command, self.now)
                told = self._take()
        except Refusal as refusal:
            expect(self.core.snapshot() == before, "refusal", f"{refusal.reason} changed the state")
            expect(not self.core.take_events(), "refusal", f"{refusal.reason} left events")
            expect(refusal.reason in (*must, *may), "refusal", f"{command}: {refusal.reason}, expected {expected}")
            self.oracles.of_sessions.refused()
            self.marks[f"refused {refusal.reason}"] += 1
            self.lines.append(f"    refused {refusal.reason}")
            self.told.append(refusal)
            return False
        expect(not must, "refusal", f"{command} was taken; it is to be refused for {must}")
        expect(answer == told, "ending", f"{command} answers {answer}, its events say {told}")
        return True

    def apply(self, command: Command) -> Applied:
        with self._call(f"{type(command).__name__}"):
            answer = self.core.apply(command, self.now)
            self._take()
        return answer

    def flush(self) -> None:
        """Exactly what the cache holds and nobody uses goes free, and so many units are told."""
        unused = {pool: len(self.book.unused(pool)) for pool in self.book.pools}
        due = Flushed(unused[PoolKind.FULL], unused.get(PoolKind.SWA, 0), unused.get(PoolKind.MAMBA, 0))
        answer = self.apply(Flush())
        expect(answer == due, "flush", f"answers {answer}; {due} was cached, and not in use")
        left = {pool: units for pool in self.book.pools if (units := self.book.unused(pool))}
        expect(not left, "flush", f"still cached, and not in use: {left}")
        self.marks["flush"] += any(unused.values())
        self.marks["flush while turns run"] += bool(self.oracles.running())

    def apply_in_vain(self, command: Command) -> None:
        """Applies a command that has nothing to do: nothing may be told of it."""
        next_seq = self._next_seq
        self.apply(command)
        expect(self._next_seq == next_seq, "ending", f"{command} is to be ignored, and was not")

    def next_plan(self) -> StepPlan | None:
        """Asks for a plan and submits it to the device."""
        num_in_flight = len(self.device.queued)
        self.oracles.admitted.clear()
        with self._call("next_plan"):
            plan = self.core.next_plan(self.now)
            self._take(is_planning=True)
        check_admissions(plan, self.oracles)
        if plan is None:
            return None
        expect(num_in_flight < self.core.config.in_flight_max, "plan", f"{num_in_flight} plans in flight already")
        self.lines.append(f"    plan {_describe(plan)}")
        self.told.append(plan)
        self._steps = plan.step
        check_plan(plan, self.core, self.oracles, self.device.queued)
        self.oracles.planned(plan)
        self.device.submit(plan)
        self._check_device()
        self._check_kinds()
        return plan

    def answer(self, *, fails: bool) -> None:
        """The device answers its oldest plan."""
        rids = [row.row.rid for row in self.device.queued[0].rows]
        outcome: StepOutcome = self.device.fail("injected") if fails else self.device.answer()
        self._check_device()
        self.lines.append(f"    answer {outcome}")
        if fails:
            self.oracles.step_failed(rids)
        with self._call("advance"):
            self.core.advance(outcome, self.now)
            self._take()

    def expire(self) -> None:
        with self._call("expire"):
            self.core.expire(self.now)
            self._take()

    @contextmanager
    def _call(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OracleFired, Refusal):
            raise
        except BookError as error:
            raise OracleFired("book", f"{what}: {error}") from error
        except CRASHES as error:
            raise OracleFired("crash", f"{what} raised {error!r}") from error

    def _take(self, *, is_planning: bool = False) -> Lengths | None:
        """Takes the events of a call. Returns what they say of lengths."""
        events: list[CoreEvent] = []
        for numbered in self.core.take_events():
            expect(numbered.seq == self._next_seq, "events", f"event {numbered.seq} follows {self._next_seq - 1}")
            self._next_seq += 1
            self._hash.update(repr(numbered).encode())
            events.append(numbered.event)
        self.lines.extend(f"    {event}" for event in events)
        self.told.extend(events)
        self._learn_traces(events)
        check_fence(events, self.device.queued)
        check_retractions(events, self.book.draining(), self.oracles)
        check_moves(events, self._steps, self._traces, is_planning=is_planning)
        if is_planning:
            check_waiting(events)
        self.book.replay(events)
        self._mark(events, is_planning=is_planning)
        told = self.oracles.observe(events, self.now)
        self.device.observe(events)
        check_state(self.core, self.book, self.oracles)
        if not is_planning:
            self._check_kinds()
        return told

    def _learn_traces(self, events: list[CoreEvent]) -> None:
        for event in events:
            if isinstance(event, SessionOpened):
                owner = self._sessions[event.session_id] = Owner(OwnerKind.SESSION, event.uid)
                self._traces[owner] = [event.trace_id]
            elif isinstance(event, TurnAccepted):
                self._traces[Owner(OwnerKind.REQUEST, event.rid)] = [event.trace_id]
                if event.session_id is not None:
                    self._traces[self._sessions[event.session_id]].append(event.trace_id)

    def _check_kinds(self) -> None:
        check_kinds(self.core.config, self.core.snapshot(), self.book, self.device.queued, self.marks)

    def _check_device(self) -> None:
        expect(not self.device.violations, "device", "; ".join(self.device.violations[:3]))

    def _mark(self, events: list[CoreEvent], *, is_planning: bool) -> None:
        running = [turn.rid for turn in self.oracles.running() if turn.is_running and not turn.drafts]
        self.marks["window left behind"] += left_behind(events, running)
        for event in events:
            match event:
                case KvMoved(pool, move):
                    self.marks[f"move {move}"] += 1
                    self.marks[f"{move} {pool}"] += pool in (PoolKind.SWA, PoolKind.MAMBA)
                    self.marks["demoted under pressure"] += is_planning and move is Move.DEMOTE
                    is_row = pool is PoolKind.ROWS and event.source.kind is OwnerKind.SESSION
                    self.marks["row demoted"] += is_planning and is_row and move is Move.RELEASE
                case Draining():
                    self.marks["draining"] += 1
                case _:
                    pass


def _describe(plan: StepPlan) -> str:
    rows = " ".join(
        f"rid{row.rid}[{row.start_len}+{row.query_len}{'s' if row.uses_sampled else ''}{'!' * row.num_samples}]"
        for row in plan.rows
    )
    return f"{plan.step}: {rows}"
