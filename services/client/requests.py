"""What a caller asks for → the request of a turn."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from protos.v1 import generate_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue."""

    role: str
    content: str


class SamplingOptions(TypedDict, total=False):
    """How a turn is generated. What is left out, or None, is the server's default: greedy, and as long as fits."""

    max_tokens: int | None
    temperature: float | None
    """0 is greedy."""
    top_k: int | None
    top_p: float | None
    seed: int | None
    """Without one the server chooses, and says which: `Turn.seed`."""
    stop: Sequence[str]
    """Texts that end the answer; it is cut before them."""
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class TurnInput:
    """Exactly one of them is given. Raises ValueError otherwise."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Message] | None = None

    def __post_init__(self) -> None:
        values = {"text": self.text, "token_ids": self.token_ids, "messages": self.messages}
        given = [name for name, value in values.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"give one of text, token_ids and messages, not {', '.join(given) or 'none'}")


def build_request(given: TurnInput, turn_id: str | None, options: SamplingOptions) -> generate_pb2.GenerateRequest:
    """Raises ValueError for a number that the protocol has no room for."""
    request = generate_pb2.GenerateRequest(
        # The client names its turns: only so can it abort one whose first message it has not seen, and go on with one
        # whose stream was lost.
        turn_id=uuid.uuid4().hex if turn_id is None else turn_id,
        sampling=_build_sampling(options),
    )
    if given.text is not None:
        request.text.text = given.text
        request.text.SetInParent()
    elif given.token_ids is not None:
        request.tokens.token_ids.extend(given.token_ids)
        request.tokens.SetInParent()
    else:
        said = given.messages or ()
        request.chat.messages.extend(types_pb2.ChatMessage(role=each.role, content=each.content) for each in said)
        request.chat.SetInParent()
    return request


def _build_sampling(options: SamplingOptions) -> types_pb2.SamplingParams:
    sampling = types_pb2.SamplingParams()
    for name, value in options.items():
        try:
            sampling.MergeFrom(types_pb2.SamplingParams(**{name: value}))  # type: ignore[arg-type]  # names and values of the TypedDict
        except ValueError as error:
            raise ValueError(f"{name}: {value} is out of range") from error
    return sampling
