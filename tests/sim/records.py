"""What the simulator knows of turns and sessions: plain histories, kept apart from anything the core believes."""

from dataclasses import dataclass, field

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import SlotState, TurnAdmitted
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.sampling import Sampling


class OracleFired(AssertionError):
    """A law does not hold. `oracle` names which one."""

    def __init__(self, oracle: str, message: str) -> None:
        super().__init__(f"{oracle}: {message}")
        self.oracle = oracle


def expect(holds: bool, oracle: str, message: str) -> None:
    """Raises OracleFired."""
    if not holds:
        raise OracleFired(oracle, message)


@dataclass(slots=True)
class TurnRecord:
    """One accepted submission."""

    rid: Rid
    turn_id: TurnId
    session_id: SessionId | None
    namespace: str
    base_len: int
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    sampling: Sampling
    arrival: int
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
    overtaken: int = 0
    """Later arrivals that were admitted since it last began to wait."""
    cut: tuple[FinishReason, int] | None = None
    """Set by CommitRequested: reason and output length that are to be committed."""
    is_kv_short: bool = False
    """Whether it was cut after a retraction, so that its KV may not reach its end."""
    finish_at: tuple[FinishReason, int] | None = None
    """Set by FinishAt, until the core confirms it."""
    is_acknowledged: bool = False
    may_end_as: list[AbortReason] = field(default_factory=list)
    must_end_as: AbortReason | None = None
    outcome: FinishReason | AbortReason | None = None

    @property
    def context_len(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def is_live(self) -> bool:
        return self.outcome is None


@dataclass(slots=True)
class SessionRecord:
    """One open session: a streaming one has a history, an ordinary one a path of ids for each finished turn."""

    session_id: SessionId
    streaming: bool
    namespace: str
    idle_timeout_s: float
    idle_since: float
    history: list[int] = field(default_factory=list)
    last_turn: TurnId | None = None
    nodes: dict[TurnId, list[int]] = field(default_factory=dict)
    live: dict[TurnId, Rid] = field(default_factory=dict)
    is_closing: bool = False
    slot: SlotState = SlotState.EMPTY
    slot_len: int = 0
    """Tokens of KV that the slot kept when it was last idle; 0 once demoted. Stays while the slot is lent."""
    is_kv_short: bool = False
    """Whether the last commit or roll-back may have left less KV than the history has."""
