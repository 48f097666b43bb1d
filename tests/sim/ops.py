"""What a schedule is made of: plain data that names sessions and turns, so that operations can be left out at will."""

from dataclasses import dataclass
from enum import StrEnum

from engine.core.commands import AbortReason, FinishReason
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class OpenOp:
    session: SessionId
    streaming: bool
    idle_timeout_s: float | None
    namespace: str


@dataclass(frozen=True, slots=True)
class CloseOp:
    session: SessionId


@dataclass(frozen=True, slots=True)
class TurnOp:
    """Submits a turn; the world mints its rid. `parent` may name a turn that never was, or runs still."""

    turn: TurnId
    session: SessionId | None
    parent: TurnId | None
    ids: tuple[int, ...]
    max_tokens: int | None
    ignore_eos: bool
    namespace: str
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class AbortOp:
    """Aborts the newest submission of that turn, in whatever state it is."""

    turn: TurnId
    reason: AbortReason


class Blow(StrEnum):
    """What an ambush does."""

    ABORT = "abort"
    CLOSE = "close"
    FINISH_AT = "finish_at"


@dataclass(frozen=True, slots=True)
class AmbushOp:
    """Lies in wait until a turn is in `phase`, then strikes it at once: that reaches states that last one call only."""

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


Op = OpenOp | CloseOp | TurnOp | AbortOp | AmbushOp | FinishAtOp | AckOp | PlanOp | AnswerOp | ExpireOp
