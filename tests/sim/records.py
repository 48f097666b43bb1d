"""What the simulator knows of turns and sessions: plain histories, kept apart from anything the core believes."""

from dataclasses import dataclass, field

from engine.core.commands import AbortReason, FinishReason, Submit
from engine.core.events import SlotState, TurnAdmitted
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.sampling import Sampling

NEVER_KEPT = (
    AbortReason.SESSION_CLOSED,
    AbortReason.SESSION_EXPIRED,
    AbortReason.COMMIT_FAILED,
    AbortReason.REPLACED,
)
"""Reasons for which a turn is rolled back whatever it asked for."""


class OracleFired(AssertionError):
    """A law does not hold. `oracle` names which one."""

    def __init__(self, oracle: str, message: str) -> None:
        super().__init__(oracle, message)  # as they came: an exception is pickled by its arguments
        self.oracle = oracle
        self._message = message

    def __str__(self) -> str:
        return f"{self.oracle}: {self._message}"


def expect(holds: bool, oracle: str, message: str) -> None:
    """Raises OracleFired."""
    if not holds:
        raise OracleFired(oracle, message)


@dataclass(slots=True)
class TurnRecord:
    """One accepted submission."""

    rid: Rid
    command: Submit
    parent: TurnId | None
    """Where it hangs in the tree of its session."""
    begin: int
    """How many of its first ids are its parent's."""
    namespace: str
    base_len: int
    prompt: list[int]
    max_tokens: int
    arrival: int
    rank: tuple[int, int]
    """Its place in its lane: lower goes first."""
    digest: int
    """Of prompt and output: what the cold oracle knows."""
    output: list[int] = field(default_factory=list)
    first_admission: TurnAdmitted | None = None
    attempts: int = 0
    retractions: int = 0
    is_waiting: bool = True
    has_sampled: bool = False
    """Whether an id was told since its last admission: its whole prompt is computed then."""
    admitted_step: int = 0
    """The plan that it was admitted for."""
    planned_step: int = 0
    """The newest plan that it is in."""
    drafts: tuple[int, ...] = ()
    """Guesses of its plan in flight."""
    cut: tuple[FinishReason | AbortReason, int] | None = None
    """Set by CommitRequested: reason and output length that are to be committed."""
    is_kv_short: bool = False
    """Whether it was cut after a retraction, so that its KV may not reach its end."""
    finish_at: tuple[FinishReason | AbortReason, int] | None = None
    """Set by FinishAt, or by an abort of a turn that keeps what it has, until the core confirms it."""
    is_acknowledged: bool = False
    must_end_as: AbortReason | None = None
    outcome: FinishReason | AbortReason | None = None

    @property
    def turn_id(self) -> TurnId:
        return self.command.turn_id

    @property
    def session_id(self) -> SessionId | None:
        return self.command.session_id

    @property
    def ignore_eos(self) -> bool:
        return self.command.ignore_eos

    @property
    def sampling(self) -> Sampling:
        return self.command.sampling

    @property
    def context_len(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def is_live(self) -> bool:
        return self.outcome is None

    @property
    def is_running(self) -> bool:
        """Whether it holds a row and computes."""
        return self.outcome is None and not self.is_waiting and self.cut is None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A finished turn: all ids up to its end, of which the first `input_len` are not its own output."""

    path: list[int]
    begin: int
    input_len: int
    parent: TurnId | None = None


@dataclass(slots=True)
class SessionRecord:
    """One open session: a streaming one is a line of ids, an ordinary one a tree of turns."""

    session_id: SessionId
    uid: int
    streaming: bool
    namespace: str
    idle_timeout_s: float
    priority: int
    idle_since: float
    history: list[int] = field(default_factory=list)
    """Of a streaming session."""
    nodes: dict[TurnId, NodeRecord] = field(default_factory=dict)
    """Finished turns, oldest first; of a streaming session their path is the history at their end."""
    live: dict[TurnId, Rid] = field(default_factory=dict)
    is_closing: bool = False
    slot: SlotState = SlotState.EMPTY
    slot_len: int = 0
    """Tokens of KV that the slot kept when it was last idle; 0 once demoted. Stays while the slot is lent."""
    kv_least: int | None = None
    """Least tokens of KV that the held slot may have between turns; None: all of the history but the last id."""
    lent_len: int = 0
    """Tokens of KV that the slot had when it was lent last; 0 when it had none, or has been demoted since."""
    kv_told: tuple[int, int] | None = None
    """What Fork or Truncate said of an ordinary session's KV, and how many pages had been evicted by then."""

    @property
    def history_len(self) -> int:
        """Tokens of the longest path."""
        if self.streaming:
            return len(self.history)
        return max((len(node.path) for node in self.nodes.values()), default=0)

    @property
    def longest(self) -> list[int]:
        """The longest path; of equal ones the oldest."""
        if self.streaming:
            return self.history
        return max((node.path for node in self.nodes.values()), key=len, default=[])
