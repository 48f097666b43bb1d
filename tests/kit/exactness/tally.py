"""What a run exercised, counted from the plans and from the core's own events."""

from dataclasses import dataclass, field

from engine.core.events import CoreEvent, SlotChanged, SlotState, TokensSampled, TurnAdmitted, TurnRetracted
from engine.core.plan import StepPlan


@dataclass(slots=True)
class Tally:
    steps: int = 0
    rows_max: int = 0
    plans_in_flight_max: int = 0
    chunk_max: int = 0
    """Most query tokens of one row, guesses left out."""
    chunks_max: int = 0
    """Most steps that the prompt of a turn under test was computed in, until it was retracted."""
    sampled_inputs: int = 0
    """Rows whose input was still in flight when they were planned."""
    tokens_from_slot: int = 0
    """At first admissions, as `tokens_from_tree`."""
    tokens_from_tree: int = 0
    drafted: int = 0
    accepted: int = 0
    given_back_steps: int = 0
    """Steps after which more was allocated than committed: some guess was wrong."""
    retractions: int = 0
    demotions: int = 0
    forked_kv: int = 0
    """Tokens whose KV forks began with."""
    cut_kv: int = 0
    """Tokens whose KV was left by cuts."""
    plans_of: list[int] = field(default_factory=list)
    """Plans of each turn under test up to its retraction, in the order of submission."""
    retracted_after: list[int | None] = field(default_factory=list)
    """After how many plans each of them was retracted on purpose; None: it was not."""
    intrusions: int = 0
    """Retractions after which another turn took the whole pool."""

    @property
    def retracted(self) -> list[int]:
        """Retractions on purpose, each by the number of plans before it."""
        return [plans for plans in self.retracted_after if plans is not None]

    def note_plan(self, plan: StepPlan, num_in_flight: int) -> None:
        self.steps += 1
        self.rows_max = max(self.rows_max, len(plan.rows))
        self.plans_in_flight_max = max(self.plans_in_flight_max, num_in_flight)
        for row in plan.rows:
            self.chunk_max = max(self.chunk_max, row.query_len - max(0, row.num_samples - 1))
            self.sampled_inputs += row.uses_sampled

    def note_event(self, event: CoreEvent) -> None:
        match event:
            case TurnAdmitted(attempt=1):
                self.tokens_from_slot += event.tokens_from_slot
                self.tokens_from_tree += event.tokens_from_tree
            case TokensSampled():
                self.drafted += event.drafted
                self.accepted += len(event.token_ids) - 1
                self.given_back_steps += event.drafted >= len(event.token_ids)
            case TurnRetracted():
                self.retractions += 1
            case SlotChanged(target=SlotState.DEMOTED):
                self.demotions += 1
            case _:
                pass

    def __str__(self) -> str:
        at = f" after step {_span(self.retracted)}" if self.retracted else ""
        return (
            f"{self.steps} steps of up to {self.rows_max} rows, {self.plans_in_flight_max} in flight, "
            f"prompts in up to {self.chunks_max} chunks of {self.chunk_max}, {self.retractions} retractions{at} "
            f"({self.intrusions} with the pool taken), {self.tokens_from_slot} tokens from slots, "
            f"{self.tokens_from_tree} from the tree, {self.accepted} of {self.drafted} guesses right, "
            f"{self.given_back_steps} steps with allocated > committed"
        )


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}..{high}"
