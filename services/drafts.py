"""What a client asked for, as plain values: decoded, not yet judged. None is what the client left out."""

from dataclasses import dataclass

from engine.runtime.handle import DEFAULT_OPTIONS, Base, TurnOptions
from services.tokenization.chat import ChatMessage


@dataclass(frozen=True, slots=True)
class TextDraft:
    text: str


@dataclass(frozen=True, slots=True)
class IdsDraft:
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatDraft:
    messages: tuple[ChatMessage, ...]


InputDraft = TextDraft | IdsDraft | ChatDraft


@dataclass(frozen=True, slots=True)
class TurnDraft:
    session_id: str | None
    turn_id: str | None
    parent: str | None
    input: InputDraft | None
    max_tokens: int | None
    temperature: float | None
    ignore_eos: bool
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    options: TurnOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a turn's new part."""

    ids: list[int]
    base: Base | None = None
    """What they were made to follow; None when they would be the same for any."""


@dataclass(frozen=True, slots=True)
class ResumeDraft:
    session_id: str | None
    turn_id: str
    from_token: int
    held_digest: bytes | None


@dataclass(frozen=True, slots=True)
class OpenDraft:
    session_id: str | None
    streaming: bool
    idle_timeout_s: float | None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ForkDraft:
    session_id: str
    new_session_id: str | None
    at_turn: str | None
    at_len: int | None


@dataclass(frozen=True, slots=True)
class UnknownEnum:
    """A field with a number that has no name here."""

    field_name: str
    number: int
    known: tuple[str, ...]
    """The names that there are."""


@dataclass(frozen=True, slots=True)
class ListDraft:
    page_size: int
    page_token: str
