"""What a caller asks for → the request of a turn."""

import difflib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from protos.v1 import generate_pb2, types_pb2
from services.client.options import refuse, set_field


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


class TurnOptions(SamplingOptions, total=False):
    """What else can be said of any turn."""

    priority: int | None
    """Higher is sooner, from -1000 to 1000; the session's without one."""
    draft_tokens: int | None
    """Most tokens a step that are guessed and verified; the answer is the same."""


class SessionTurnOptions(TurnOptions, total=False):
    """What else can be said of a turn of a session. All but the last are for ordinary sessions."""

    replace: bool
    """Takes the place of all that came after `parent`; without a parent, of everything."""
    offset: int | None
    """Keeps so many of the tokens that it would follow, from the first."""
    drop_previous_output: bool
    """Follows the parent's input without its output."""
    keep_on_abort: bool
    """What it was given until it was aborted, or left, stays in the session."""


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
    """Raises OptionError for what the protocol has no room for, and TypeError for what is of another kind."""
    request = generate_pb2.GenerateRequest(sampling=types_pb2.SamplingParams())
    # The client names its turns: only so can it abort one whose first message it has not seen, and go on with one
    # whose stream was lost.
    set_field(request, "turn_id", uuid.uuid4().hex if turn_id is None else turn_id)
    _set_options(request, options)
    _set_input(request, given)
    return request


def _set_input(request: generate_pb2.GenerateRequest, given: TurnInput) -> None:
    if given.text is not None:
        set_field(request.text, "text", given.text)
        request.text.SetInParent()
    elif given.token_ids is not None:
        try:
            request.tokens.token_ids.extend(given.token_ids)
        except (ValueError, TypeError) as error:
            refuse("token_ids", _find_bad_id(given.token_ids), error)
        request.tokens.SetInParent()
    else:
        for each in given.messages or ():
            if not isinstance(each, Message):
                raise TypeError(f"messages: give Message(role, content), not {type(each).__name__}")
            said = request.chat.messages.add()
            set_field(said, "role", each.role, "messages")
            set_field(said, "content", each.content, "messages")
        request.chat.SetInParent()


def _find_bad_id(token_ids: Sequence[object]) -> object:
    """The first that is no 32-bit integer, or all, when they are not to blame one by one."""
    return next((each for each in token_ids if not (isinstance(each, int) and -(2**31) <= each < 2**31)), token_ids)


def _set_options(request: generate_pb2.GenerateRequest, options: SamplingOptions) -> None:
    for name, value in options.items():
        _require_option(name, value)
        try:
            if name in SamplingOptions.__annotations__:
                request.sampling.MergeFrom(types_pb2.SamplingParams(**{name: value}))  # type: ignore[arg-type]  # names and values of the TypedDict
            else:
                request.MergeFrom(_build_option(name, value))
        except (ValueError, TypeError) as error:
            refuse(name, value, error)


def _build_option(name: str, value: object) -> generate_pb2.GenerateRequest:
    match name:
        case "replace":
            mode = generate_pb2.TURN_MODE_REPLACE if value else generate_pb2.TURN_MODE_UNSPECIFIED
            return generate_pb2.GenerateRequest(mode=mode)
        case "keep_on_abort":
            on_abort = generate_pb2.ON_ABORT_KEEP if value else generate_pb2.ON_ABORT_UNSPECIFIED
            return generate_pb2.GenerateRequest(on_abort=on_abort)
        case _:
            return generate_pb2.GenerateRequest(**{name: value})  # type: ignore[arg-type]  # names and values of the TypedDict


def _require_option(name: str, value: object) -> None:
    """Callers whose code nobody type-checks hear of a slip here, and not never."""
    known = SessionTurnOptions.__annotations__
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
        raise TypeError(f"unknown option {name!r}{hint}")
    if name == "stop" and isinstance(value, str | bytes):
        raise TypeError(
            f"stop: give a list of texts, as in stop=[{value!r}]; a single one would be read as its letters"
        )
