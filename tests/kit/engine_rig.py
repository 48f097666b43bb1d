"""A whole engine over a real executor, and what a run of it exercised, counted from the core's own events."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import Numbered, SlotChanged, SlotState, StepPlanned, TurnAdmitted, TurnRetracted, Usage
from engine.core.ids import SessionId, TurnId, pack_ids
from engine.core.sampling import GREEDY, Sampling
from engine.core.snapshot import Snapshot
from engine.executor.protocol import Executor
from engine.runtime.config import RuntimeConfig
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import DEFAULT_OPTIONS, Delta, Finished, TurnOptions, TurnRequest


class NoText:
    """A vocabulary for tests that look at ids only."""

    def token_bytes(self, _token_id: int) -> bytes:
        return b""

    def is_special(self, _token_id: int) -> bool:
        return True


@dataclass(slots=True)
class Exercised:
    """An `EventSink` that counts what happened, so that a run can prove what it ran."""

    steps: int = 0
    batch_rows_max: int = 0
    step_tokens_max: int = 0
    admissions: int = 0
    retractions: int = 0
    demotions: int = 0
    tokens_from_slot: int = 0
    tokens_from_tree: int = 0

    def publish(self, events: tuple[Numbered, ...], _now: float) -> None:
        for numbered in events:
            match numbered.event:
                case StepPlanned() as planned:
                    self.steps += 1
                    self.batch_rows_max = max(self.batch_rows_max, planned.num_rows)
                    self.step_tokens_max = max(self.step_tokens_max, planned.num_tokens)
                case TurnAdmitted() as admitted:
                    self.admissions += 1
                    self.tokens_from_slot += admitted.tokens_from_slot
                    self.tokens_from_tree += admitted.tokens_from_tree
                case TurnRetracted():
                    self.retractions += 1
                case SlotChanged(target=SlotState.DEMOTED):
                    self.demotions += 1
                case _:
                    pass

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, up to {self.batch_rows_max} rows and {self.step_tokens_max} tokens a step, "
            f"{self.admissions} admissions, {self.retractions} retractions, {self.demotions} demotions, "
            f"{self.tokens_from_slot} tokens from slots, {self.tokens_from_tree} from the tree"
        )


@dataclass(slots=True)
class TurnOutput:
    token_ids: list[int] = field(default_factory=list)
    outcome: FinishReason | AbortReason | None = None
    usage: Usage | None = None
    history_len: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRig:
    """An engine that serves, with the full check after every step."""

    engine: LocalEngine
    exercised: Exercised

    async def turn(
        self,
        turn_id: str,
        new_ids: Sequence[int],
        session: str | None = None,
        parent: str | None = None,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        *,
        ignore_eos: bool = False,
        options: TurnOptions = DEFAULT_OPTIONS,
    ) -> TurnOutput:
        """Runs one turn to its end."""
        request = TurnRequest(
            turn_id=TurnId(turn_id),
            input_ids=pack_ids(new_ids),
            session_id=SessionId(session) if session is not None else None,
            parent=TurnId(parent) if parent is not None else None,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            sampling=sampling,
            options=options,
        )
        output = TurnOutput()
        async for event in await self.engine.submit(request):
            if isinstance(event, Delta):
                output.token_ids += event.token_ids
            elif isinstance(event, Finished):
                output.outcome, output.usage = event.outcome, event.usage
                output.history_len = event.history_len
        return output

    async def snapshot(self) -> Snapshot:
        return await self.engine.snapshot()


@asynccontextmanager
async def serving(executor: Executor, config: CoreConfig) -> AsyncIterator[EngineRig]:
    """Starts an engine over `executor`, which it closes at the end; the books must balance with nothing held then."""
    exercised = Exercised()
    runtime = RuntimeConfig(full_check_steps=1, warm_up=False)
    engine = LocalEngine(Core(config), executor, NoText(), sinks=[exercised], config=runtime)
    await engine.start()
    try:
        yield EngineRig(engine, exercised)
    finally:
        await engine.stop()
