"""What a schedule is made of: plain data that names sessions and turns, so that operations can be left out at will."""

from dataclasses import dataclass
from enum import StrEnum

from engine.core.commands import AbortReason, FinishReason, TurnMode
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class Length:
    """A length in tokens, or so many percent of all that there is when the operation runs."""

    value: int
    is_share: bool = False

    def of(self, total: int) -> int:
        return total * self.value // 100 if self.is_share else self.value


@dataclass(frozen=True, slots=True)
class OpenOp:
    session: SessionId
    streaming: bool
    idle_timeout_s: float | None
    namespace: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class CloseOp:
    session: SessionId
    drain: bool = False


@dataclass(frozen=True, slots=True)
class ForkOp:
    """A new session with the history of `session`, up to a turn that may not be there, cut to `at_len` of that."""

    session: SessionId
    new_session: SessionId
    at_turn: TurnId | None = None
    at_len: Length | None = None


@dataclass(frozen=True, slots=True)
class TruncateOp:
    """`is_at_end`: to where the last turn ends that ends no later, when there is one."""

    session: SessionId
    length: Length
    is_at_end: bool = False


@dataclass(frozen=True, slots=True)
class TurnOp:
    """Submits a turn; the world mints its rid. `parent` may name a turn that never was, or runs still.

    `^0` is the session's newest finished turn, `^1` the one before it; `~0` its newest live one. Where there are not so
    many it is the oldest, or none.
    """

    turn: TurnId
    session: SessionId | None
    parent: TurnId | None
    ids: tuple[int, ...]
    max_tokens: int | None
    ignore_eos: bool
    namespace: str
    sampling: Sampling = GREEDY
    mode: TurnMode = TurnMode.APPEND
    offset: Length | None = None
    """Of the ids that the turn would follow."""
    is_dropping: bool = False
    """The parent's output."""
    is_keeping: bool = False
    """What it was given, when it is broken off."""
    priority: int | None = None
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AbortOp:
    """Aborts the newest submission of that turn, in whatever state it is."""

    turn: TurnId
    reason: AbortReason


class Blow(StrEnum):
    """What an ambush does."""

    ABORT = "abort"
    CLOSE = "close"
    DRAIN = "drain"
    """Closes the session, letting its turns finish."""
    FINISH_AT = "finish_at"
    TRUNCATE = "truncate"
    """Cuts the session in half."""


@dataclass(frozen=True, slots=True)
class AmbushOp:
    """Lies in wait until a turn is in `phase`, then strikes it at once: that reaches states that last one call only.

    Beside the phases of a snapshot there is `retracted`: waiting, and given ids before.
    """

    phase: str
    blow: Blow


@dataclass(frozen=True, slots=True)
class FinishAtOp:
    """Cuts a turn to `back` ids fewer than it has generated.

    A negative `back` asks for more ids than there are, a large one for none or fewer: both are to be ignored.
    """

    turn: TurnId
    back: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class AckOp:
    """Answers up to `count` commits, oldest first. With none to answer it tries a running turn: to be ignored."""

    count: int
    fails: bool


@dataclass(frozen=True, slots=True)
class PlanOp:
    """Asks for the next plan, and submits it."""


@dataclass(frozen=True, slots=True)
class AnswerOp:
    """Answers the oldest plan in flight."""

    fails: bool


@dataclass(frozen=True, slots=True)
class ExpireOp:
    """Lets time pass, then expires sessions."""

    after_s: float


@dataclass(frozen=True, slots=True)
class FlushOp:
    """Frees what the cache holds and nobody uses."""


Op = (
    OpenOp
    | CloseOp
    | ForkOp
    | TruncateOp
    | TurnOp
    | AbortOp
    | AmbushOp
    | FinishAtOp
    | AckOp
    | PlanOp
    | AnswerOp
    | ExpireOp
    | FlushOp
)
