"""What the shell may ask of the core: a closed union, matched with `assert_never`.

Fork, Truncate, Flush, Export and Adopt join it with the features they serve.
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
    """Why a turn was rolled back."""

    CLIENT = "client"
    DISCONNECT = "disconnect"
    DEADLINE = "deadline"
    SESSION_CLOSED = "session_closed"
    SESSION_EXPIRED = "session_expired"
    SLOW_READER = "slow_reader"
    FORWARD_FAILED = "forward_failed"
    COMMIT_FAILED = "commit_failed"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Open:
    """Opens a session. Refused: SESSION_EXISTS, SESSION_LIMIT, STREAMING_DISABLED, IDLE_TIMEOUT_INVALID."""

    session_id: SessionId
    streaming: bool
    idle_timeout_s: float | None = None
    """None takes the configured one."""
    namespace: str = ""
    """KV is shared only inside one namespace (tenant, weights, adapter, salt). Of all turns of the session."""
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """Closes a session: its turns end as aborted (one that is committing commits first), then its KV is released.

    Idempotent: an unknown session is no error.
    """

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class Submit:
    """One turn. `input_ids` (int32 bytes) are the new ids only; the core puts the session's history before them.

    Refused, changing nothing: EMPTY_PROMPT, TOKEN_OUT_OF_RANGE, MAX_TOKENS_INVALID, SAMPLING_INVALID,
    PROMPT_EXCEEDS_CONTEXT, PROMPT_EXCEEDS_POOL, SESSION_UNKNOWN, SESSION_BUSY (value: the running turn's id),
    SESSION_TURNS_LIMIT, STREAMING_APPENDS_ONLY, PARENT_*, TURN_EXISTS, QUEUE_FULL.
    """

    rid: Rid
    turn_id: TurnId
    input_ids: bytes
    session_id: SessionId | None = None
    parent: TurnId | None = None
    """Ordinary sessions: the finished turn to append to; None starts a new root."""
    max_tokens: int | None = None
    """None means all that is left of the context and the pool."""
    ignore_eos: bool = False
    sampling: Sampling = GREEDY
    namespace: str = ""
    """Of a stateless turn; a session's turns have the session's."""
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a turn by roll-back. Idempotent: unknown, ended and committing turns are left as they are."""

    rid: Rid
    reason: AbortReason = AbortReason.CLIENT


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


Command = Open | Close | Submit | Abort | FinishAt | CommitAck | CommitFailed
