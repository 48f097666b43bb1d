"""The request record: one turn on its way through the engine, its lengths and its states."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.core.commands import AbortReason, FinishReason, OnAbort
from engine.core.errors import require
from engine.core.events import Usage
from engine.core.ids import TOKEN_BYTES, Rid, StepNo, TurnId, pack_id, pack_ids, pages_for
from engine.core.ownership import Owner, OwnerKind
from engine.core.priorities import Rank
from engine.core.radix import Lock
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


@dataclass(slots=True)
class Holding:
    """The KV that one holder, a request or a session slot, has in its hands.

        positions:  0 ............ cache_protected_len ........ kv_committed_len .... kv_allocated_len
        pages:      | tree's, under `lock` | own, in `pages` ......................................|
                    | valid KV ...................................... | in flight or over-run ......|

    `cache_protected_len` is a multiple of the page size, and the pages reach kv_allocated_len at least: room is granted
    before a plan is made.
    """

    req_pool_idx: int | None = None
    lock: Lock | None = None
    cache_protected_len: int = 0
    pages: list[int] = field(default_factory=list)
    kv_committed_len: int = 0
    kv_allocated_len: int = 0

    def num_pages(self, page_size: int) -> int:
        """Pages of the page table, the tree's and the own ones."""
        return self.cache_protected_len // page_size + len(self.pages)

    def all_pages(self) -> list[int]:
        """The page table's entries in order: O(depth + pages)."""
        return (self.lock.pages() if self.lock is not None else []) + self.pages

    def own_reach(self, length: int, page_size: int) -> int:
        """How many of the own pages the first `length` tokens need."""
        return max(0, pages_for(length, page_size) - self.cache_protected_len // page_size)


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
    """Whether the prompt was offered to the prefix cache in this attempt."""
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
