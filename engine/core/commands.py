"""What the shell may ask of the core: a closed union, matched with `assert_never`.

Export and Adopt join it with the features they serve.
"""

from dataclasses import dataclass
from enum import StrEnum

from engine.core.ids import Rid, SessionId, TurnId
from engine.core.sampling import GREEDY, Sampling


class FinishReason(StrEnum):
    """Why a committed turn stopped generating."""

    STOP = "stop"
    """An end-of-sequence id, or a stop string found by the shell."""
    LENGTH = "length"
    """The turn's own limit, or the context's or the pool's end."""


class AbortReason(StrEnum):
    """Why a turn was broken off: rolled back, or cut where it was when it keeps what it was given."""

    CLIENT = "client"
    DISCONNECT = "disconnect"
    DEADLINE = "deadline"
    SESSION_CLOSED = "session_closed"
    SESSION_EXPIRED = "session_expired"
    SLOW_READER = "slow_reader"
    FORWARD_FAILED = "forward_failed"
    COMMIT_FAILED = "commit_failed"
    SHUTDOWN = "shutdown"
    REPLACED = "replaced"
    """A later turn of its session took its place."""


class TurnMode(StrEnum):
    """How a turn of an ordinary session relates to its parent."""

    APPEND = "append"
    """Follows the parent, which stays as it is and may get more children."""
    REPLACE = "replace"
    """Takes the place of all that came after the parent; without a parent, of everything."""


class OnAbort(StrEnum):
    """What becomes of the ids that a session's turn was given before it was broken off."""

    ROLL_BACK = "roll_back"
    """They are void: the session is what it was before the turn."""
    KEEP = "keep"
    """They become part of the session, as if the turn had been cut there."""


@dataclass(frozen=True, slots=True)
class Open:
    """Opens a session.

    Refused: SESSION_EXISTS, SESSION_LIMIT, STREAMING_DISABLED, IDLE_TIMEOUT_INVALID, PRIORITY_INVALID.
    """

    session_id: SessionId
    streaming: bool
    idle_timeout_s: float | None = None
    """None takes the configured one."""
    namespace: str = ""
    """KV is shared only inside one namespace (tenant, weights, adapter, salt). Of all turns of the session."""
    priority: int = 0
    """Of all turns of the session that name none; higher is sooner."""
    trace_id: str = ""
    caller_span: str = ""
    """Names the caller's span for whoever draws traces, as in all commands and events that carry it. Opaque here."""


@dataclass(frozen=True, slots=True)
class Close:
    """Closes a session: its turns end as aborted (one that is committing commits first), then its KV is released.

    Idempotent: an unknown session is no error. From here on the session takes no more turns.
    """

    session_id: SessionId
    drain: bool = False
    """Lets running and waiting turns finish first. A later Close without it aborts them after all."""
    trace_id: str = ""
    caller_span: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Opens a new session with the history of another, up to a point, sharing its KV up to there.

    The point is the end of the finished turn `at_turn`, then cut to `at_len` tokens; with neither, all there is. The
    new session has the other's kind, namespace, idle timeout and priority. Turns of the other that run do not matter.

        ordinary:   with `at_turn` that turn and those above it, else the whole tree; every path is cut to `at_len`
        streaming:  the one line

    Refused: SESSION_UNKNOWN, SESSION_CLOSING, SESSION_EXISTS, SESSION_LIMIT, PARENT_UNKNOWN (no finished turn
    `at_turn`), LENGTH_INVALID (`at_len` below 0 or past the end), HISTORY_LIMIT.
    """

    session_id: SessionId
    new_session_id: SessionId
    at_turn: TurnId | None = None
    at_len: int | None = None
    trace_id: str = ""
    caller_span: str = ""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Rewinds a session to its first `length` tokens, with the KV of these.

    In an ordinary session every path is cut: turns that begin at or behind `length` are forgotten, those that run past
    it are cut there. In a streaming one, turns that end behind `length` are forgotten by name.

    Refused: SESSION_UNKNOWN, SESSION_CLOSING, SESSION_BUSY (a turn runs or waits), LENGTH_INVALID (below 0, or past the
    longest path).
    """

    session_id: SessionId
    length: int


@dataclass(frozen=True, slots=True)
class Submit:
    """One turn. `input_ids` (int32 bytes) are the new ids only; the core puts the session's history before them.

    Refused, changing nothing: EMPTY_PROMPT, TOKEN_OUT_OF_RANGE, MAX_TOKENS_INVALID, SAMPLING_INVALID,
    PRIORITY_INVALID, DRAFT_TOKENS_INVALID, PROMPT_EXCEEDS_CONTEXT, PROMPT_EXCEEDS_POOL, SESSION_UNKNOWN,
    SESSION_CLOSING, SESSION_BUSY (value: the running turn's id), SESSION_TURNS_LIMIT, SESSION_REQUIRED,
    STREAMING_APPENDS_ONLY, PARENT_*, OFFSET_INVALID, TURN_EXISTS, HISTORY_LIMIT, QUEUE_FULL.
    """

    rid: Rid
    turn_id: TurnId
    input_ids: bytes
    session_id: SessionId | None = None
    parent: TurnId | None = None
    """Ordinary sessions: the turn to follow; None starts a new root. It must be finished, except to REPLACE it."""
    mode: TurnMode = TurnMode.APPEND
    """Ordinary sessions only: REPLACE aborts and forgets what it takes the place of, see `engine.core.turns`."""
    offset: int | None = None
    """Ordinary sessions only: how many of the ids that the turn would follow it keeps, from the first; None all."""
    drop_previous_output: bool = False
    """Ordinary sessions only: follows the parent's input, without its output."""
    on_abort: OnAbort = OnAbort.ROLL_BACK
    """KEEP is for sessions only."""
    priority: int | None = None
    """Higher is sooner; None takes the session's, or 0."""
    draft_tokens: int = 0
    """Most tokens a step that are guessed from the turn's own ids and verified (prompt lookup); 0 guesses none. The
    answer is the same with and without."""
    max_tokens: int | None = None
    """None means all that is left of the context and the pool."""
    ignore_eos: bool = False
    sampling: Sampling = GREEDY
    namespace: str = ""
    """Of a stateless turn; a session's turns have the session's."""
    trace_id: str = ""
    caller_span: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """Breaks a turn off: by roll-back, or by a commit of what it was given so far when it says KEEP and was given any.

    Idempotent: unknown, ended and committing turns are left as they are.
    """

    rid: Rid
    reason: AbortReason = AbortReason.CLIENT
    detail: str = ""
    """What the turn's end says beside the reason, for people."""


@dataclass(frozen=True, slots=True)
class FinishAt:
    """Cuts a turn to its first `output_len` generated ids, with their KV, and commits it.

    Ignored for a turn that is unknown, already ended or acknowledged, or shorter than `output_len`.
    """

    rid: Rid
    output_len: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class CommitAck:
    """The shell has stored what must be stored: the turn is committed. Ignored unless it is committing."""

    rid: Rid


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The store failed: the turn rolls back and ends as COMMIT_FAILED. Ignored unless it is committing."""

    rid: Rid


@dataclass(frozen=True, slots=True)
class Flush:
    """Frees all that the prefix cache holds and nobody uses. What turns and sessions hold or use stays."""

    evictions_max: int | None = None
    """Goes so far only, so that a large cache is freed bit by bit; None goes to the end."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """What went free by a Flush: the answer of `Core.apply`."""

    pages: int
    swa_pages: int = 0
    states: int = 0
    is_complete: bool = True
    """Whether nothing is left that nobody uses."""

    def plus(self, other: "Flushed") -> "Flushed":
        """Both together, the other behind this one."""
        return Flushed(
            self.pages + other.pages,
            self.swa_pages + other.swa_pages,
            self.states + other.states,
            other.is_complete,
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """What became of a session by Fork or Truncate: the answer of `Core.apply`."""

    history_len: int
    """Tokens that the session has now; of an ordinary one those of its longest path."""
    kv_len: int
    """How many of them, from the first, have their KV now; the next turn computes the others."""


Command = Open | Close | Fork | Truncate | Submit | Abort | FinishAt | CommitAck | CommitFailed | Flush
Applied = Lengths | Flushed | None
"""What `Core.apply` returns: Lengths of Fork and Truncate, Flushed of Flush."""
