"""What a client asked for, as plain values: decoded, not yet judged. None is what the client left out."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class OpenDraft:
    session_id: str | None
    streaming: bool
    idle_timeout_s: float | None
