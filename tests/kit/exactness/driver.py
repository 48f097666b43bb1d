"""Drives a core and a device by hand, with a full check after every call, and retracts turns at chosen steps."""

from dataclasses import dataclass, field

from engine.core.commands import AbortReason, Applied, Command, CommitAck, FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.events import CommitRequested, CoreEvent, TokensSampled, TurnEnded
from engine.core.findings import CheckLevel
from engine.core.ids import Rid
from engine.core.ownership import PoolKind
from engine.core.plan import StepPlan
from engine.core.snapshot import PoolBooks, Snapshot
from tests.kit.exactness.devices import Device
from tests.kit.exactness.retracting_core import RetractingCore
from tests.kit.exactness.tally import Tally

STEPS_MAX = 5_000


@dataclass(slots=True, eq=False)
class TurnRun:
    """One turn on its way."""

    command: Submit
    prompt: tuple[int, ...]
    retract_after: int | None = None
    """After how many plans of it the turn is retracted, once; None never."""
    plans: int = 0
    """Made so far, in all its attempts."""
    first_plans: int = 0
    """Of them, those before it was retracted on purpose."""
    first_chunks: int = 0
    """Of these, those with a part of the prompt."""
    retracted_after: int | None = None
    output: list[int] = field(default_factory=list)
    expects: FinishReason | AbortReason = FinishReason.LENGTH
    """How it is to end."""
    ended: TurnEnded | None = None

    @property
    def is_done(self) -> bool:
        return self.ended is not None

    @property
    def rid(self) -> Rid:
        return self.command.rid


class Driver:
    """Makes plans until no more is to be had (the configuration says how many), then takes the oldest one's answer."""

    def __init__(self, config: CoreConfig, device: Device) -> None:
        self.config = config
        self.tally = Tally()
        self.intruder: TurnRun | None = None
        """Submitted together with the next retraction on purpose."""
        self._core = RetractingCore(config)
        self._device = device
        self._runs: dict[Rid, TurnRun] = {}
        self._now = 0.0

    def apply(self, command: Command) -> Applied:
        lengths = self._core.apply(command, self._now)
        self._follow()
        return lengths

    def submit(self, run: TurnRun) -> None:
        self._runs[run.rid] = run
        self.apply(run.command)

    def step(self) -> None:
        """Fills the device, then takes one answer."""
        self._now += 1.0
        assert self._now < STEPS_MAX, "the turns do not come to an end"
        while self._core.num_in_flight < self.config.in_flight_max:
            self._retract_due()
            plan = self._core.next_plan(self._now)
            self._follow()
            if plan is None:
                break
            self._note_plan(plan)
            self._device.submit(plan)
        if self._core.num_in_flight:
            self._core.advance(self._device.answer(), self._now)
            self._follow()

    def settle(self) -> None:
        """Runs until nothing is left to do."""
        while self._core.has_work:
            self.step()

    def snapshot(self) -> Snapshot:
        return self._core.snapshot()

    def books(self, pool: PoolKind) -> PoolBooks:
        """The terms of one pool's equation."""
        return next(books for books in self._core.snapshot().pools if books.pool is pool)

    def assert_empty(self) -> None:
        """No turn, no session, and every unit of every pool to be had. Raises AssertionError."""
        snapshot = self._core.snapshot()
        assert snapshot.turns == ()
        assert snapshot.sessions == ()
        for books in snapshot.pools:
            assert books.available + books.evictable == books.total, books
            assert books.pool is not PoolKind.ROWS or books.available == books.total, books

    def _retract_due(self) -> None:
        for run in tuple(self._runs.values()):
            if run.retract_after != run.plans or run.retracted_after is not None or not self._core.retract(run.rid):
                continue
            run.retracted_after = run.plans
            self._follow()
            if self.intruder is not None:
                intruder, self.intruder = self.intruder, None
                self.submit(intruder)

    def _note_plan(self, plan: StepPlan) -> None:
        self.tally.note_plan(plan, self._core.num_in_flight)
        for row in plan.rows:
            run = self._runs[row.rid]
            run.plans += 1
            if run.retracted_after is None:
                run.first_plans += 1
                run.first_chunks += row.start_len < len(run.prompt)

    def _follow(self) -> None:
        """Hears what the core told, checks its books, and acknowledges commits."""
        events = [numbered.event for numbered in self._core.take_events()]
        self._device.observe(events)
        self._device.assert_sound()
        report = self._core.check(CheckLevel.FULL)
        assert report.is_clean, report.findings
        for event in events:
            self.tally.note_event(event)
            self._note_ending(event)
        for event in events:
            if isinstance(event, CommitRequested):
                self.apply(CommitAck(event.rid))

    def _note_ending(self, event: CoreEvent) -> None:
        if isinstance(event, TokensSampled):
            run = self._runs[event.rid]
            assert event.output_start == len(run.output)
            run.output += event.token_ids
        elif isinstance(event, TurnEnded):
            run = self._runs[event.rid]
            assert event.outcome is run.expects, event
            run.ended = event
