"""The request record: one turn on its way through the engine, its lengths and its states."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.core.commands import AbortReason, FinishReason, OnAbort
from engine.core.errors import require
from engine.core.events import Usage
from engine.core.holding import Holding
from engine.core.ids import TOKEN_BYTES, Rid, StepNo, TurnId, pack_id, pack_ids
from engine.core.ownership import Owner, OwnerKind
from engine.core.priorities import Rank
from engine.core.sampling import Sampling
from engine.core.sessions import Session


class Phase(StrEnum):
    """Where a request stands. Leaving it for good or for a while, it keeps its KV until its plans are answered."""

    WAITING = "waiting"
    """Holds nothing: new, or retracted."""
    RUNNING = "running"
    RETRACTING = "retracting"
    """Retracted while in flight; waits again once its plans are answered."""
    COMMITTING = "committing"
    """Finished; the shell stores it."""
    COMMITTED = "committed"
    """Acknowledged and ended; its KV moves on once its plans are answered."""
    ROLLING_BACK = "rolling_back"
    """Aborted and ended; its KV goes back once its plans are answered."""
    DONE = "done"


SETTLING = (Phase.RETRACTING, Phase.COMMITTED, Phase.ROLLING_BACK)
"""Phases of a request that gave its KV up and waits for its plans in flight."""

PHASE_MOVES: dict[Phase, tuple[Phase, ...]] = {
    Phase.WAITING: (Phase.RUNNING, Phase.COMMITTING, Phase.ROLLING_BACK),
    Phase.RUNNING: (Phase.RETRACTING, Phase.COMMITTING, Phase.ROLLING_BACK),
    Phase.RETRACTING: (Phase.WAITING, Phase.COMMITTING, Phase.ROLLING_BACK),
    Phase.COMMITTING: (Phase.COMMITTED, Phase.ROLLING_BACK),
    Phase.COMMITTED: (Phase.DONE,),
    Phase.ROLLING_BACK: (Phase.DONE,),
    Phase.DONE: (),
}


class Lane(StrEnum):
    """Two kinds of traffic that share the engine fairly."""

    SESSIONS = "sessions"
    PLAIN = "plain"
    """Turns without a session."""


@dataclass(slots=True, eq=False)
class Request:
    """One submission. Made by the intake, changed by the scheduler and by the prefix cache that holds its KV."""

    rid: Rid
    turn_id: TurnId
    session: Session | None
    namespace: str
    ids: bytearray
    """int32 bytes: the session's history, the new ids, then what was generated."""
    base_len: int
    """Tokens of history before this turn."""
    prompt_len: int
    """Tokens of history and new ids."""
    known_len: int = field(init=False)
    """Tokens whose ids the host knows: those in `ids`, counted here because each step asks for it many times."""
    max_tokens: int
    ignore_eos: bool
    sampling: Sampling
    rank: Rank
    trace_id: str
    on_abort: OnAbort = OnAbort.ROLL_BACK
    draft_tokens: int = 0
    phase: Phase = Phase.WAITING
    epoch: int = 0
    kv: Holding = field(default_factory=Holding)
    in_flight: int = 0
    last_step: StepNo = StepNo(0)
    """The newest plan that this request was in."""
    pending_samples: int = 0
    """Ids that plans in flight will yield, in this epoch."""
    is_prompt_cached: bool = False
    """Whether all of the prompt was offered to the prefix cache in this attempt."""
    waits_for: "Request | None" = None
    """While it waits: the one whose prompt will spare it a part of its own."""
    usage: Usage | None = None
    retractions: int = 0
    is_last_attempt: bool = False
    """Was retracted as often as may be: it comes in again first, with room for all its tokens, and stays."""
    finish_reason: FinishReason | AbortReason | None = None
    """Why it commits."""
    finish_detail: str = ""
    outcome: FinishReason | AbortReason | None = None
    owner: Owner = field(init=False)
    lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        self.owner = Owner(OwnerKind.REQUEST, self.rid)
        self.known_len = len(self.ids) // TOKEN_BYTES
        self.lane = Lane.PLAIN if self.session is None else Lane.SESSIONS

    @property
    def output_len(self) -> int:
        return self.known_len - self.prompt_len

    def least_len(self, cut_back_max: int) -> int:
        """Tokens of KV that are left at least when it is cut once more: only what it generates is ever cut."""
        committed_len = self.kv.kv_committed_len
        return max(0, committed_len - cut_back_max) if self.known_len > self.prompt_len else committed_len

    @property
    def is_committed(self) -> bool:
        """Whether it ended as part of its session, be it by an abort that keeps what it was given."""
        return self.outcome is not None and self.finish_reason is self.outcome

    @property
    def is_waiting_for_prompt(self) -> bool:
        """Whether what it waits for is still being computed."""
        other = self.waits_for
        return other is not None and other.phase is Phase.RUNNING and not other.is_prompt_cached

    def next_query_len(self) -> int:
        """Tokens that a next plan could compute: those that are known, or the one id that a plan in flight will sample.

        Nothing when the ids in flight already reach the turn's limit.
        """
        if self.known_len - self.prompt_len + self.pending_samples >= self.max_tokens:
            return 0
        explicit = self.known_len - self.kv.kv_allocated_len
        if explicit > 0:
            return explicit
        return 1 if explicit + self.pending_samples > 0 else 0

    def append(self, token_ids: tuple[int, ...]) -> None:
        """More generated ids."""
        self.ids += pack_id(token_ids[0]) if len(token_ids) == 1 else pack_ids(token_ids)
        self.known_len += len(token_ids)

    def cut(self, output_len: int) -> None:
        """Forgets all generated ids but the first `output_len`."""
        self.known_len = self.prompt_len + output_len
        del self.ids[self.known_len * TOKEN_BYTES :]

    def go(self, phase: Phase) -> None:
        """Changes the phase. Raises InvariantViolation when the table does not allow it."""
        require(phase in PHASE_MOVES[self.phase], f"rid {self.rid}: {self.phase} → {phase}")
        self.phase = phase
