"""The one gate: what passes here is finite, in range and of a size that the engine may be asked for.

What depends on the engine's state or on the model (context, pool, vocabulary, sessions) is refused by the core, with
the same kind of reason.
"""

import math

from engine.core.ids import SessionId, TurnId, pack_ids
from engine.runtime.handle import TurnRequest
from services.drafts import ChatDraft, IdsDraft, InputDraft, OpenDraft, TextDraft, TurnDraft
from services.errors import EdgeReason, invalid_field
from services.limits import LIMITS, EdgeLimits


def validate_open(draft: OpenDraft) -> None:
    """Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    check_name("session_id", draft.session_id)
    timeout_s = draft.idle_timeout_s
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise invalid_field("idle_timeout_s", "must be a finite number of seconds above 0", value=timeout_s)


def validate_turn(draft: TurnDraft, limits: EdgeLimits = LIMITS) -> InputDraft:
    """The turn's input. Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    check_name("session_id", draft.session_id)
    check_name("turn_id", draft.turn_id)
    check_name("parent_turn_id", draft.parent)
    _check_sampling(draft)
    if draft.input is None:
        raise invalid_field("input", "one of text, tokens and chat must be set", reason=EdgeReason.INPUT_MISSING)
    _check_input(draft.input, limits)
    return draft.input


def validate(
    draft: TurnDraft, input_ids: list[int], *, turn_id: str, deadline_s: float | None, trace_id: str = ""
) -> TurnRequest:
    """The immutable request, from a draft that passed `validate_turn` and the ids of its input.

    Raises CallError when there are no ids, or when one can not be a token id anywhere.
    """
    if not input_ids:
        raise invalid_field("input", "is empty: there is nothing to answer", reason=EdgeReason.INPUT_MISSING)
    return TurnRequest(
        turn_id=TurnId(turn_id),
        input_ids=pack_ids(input_ids),
        session_id=None if draft.session_id is None else SessionId(draft.session_id),
        parent=None if draft.parent is None else TurnId(draft.parent),
        max_tokens=draft.max_tokens,
        ignore_eos=draft.ignore_eos,
        deadline_s=deadline_s,
        trace_id=trace_id,
    )


def check_name(field_name: str, name: str | None, limits: EdgeLimits = LIMITS) -> None:
    """Names of sessions and turns are printable and short, so that logs and traces can hold them as they are."""
    if name is None:
        return
    if not name:
        raise invalid_field(field_name, "is empty; leave it out to have one chosen")
    if len(name) > limits.name_chars_max:
        raise invalid_field(
            field_name,
            f"is longer than {limits.name_chars_max} characters",
            value=len(name),
            limit=limits.name_chars_max,
        )
    if not name.isprintable():
        raise invalid_field(field_name, "has characters that can not be printed")


def _check_sampling(draft: TurnDraft) -> None:
    if draft.max_tokens is not None and draft.max_tokens < 1:
        raise invalid_field(
            "sampling.max_tokens", "must be at least 1; leave it out for all that fits", value=draft.max_tokens, limit=1
        )
    if draft.temperature is None or draft.temperature == 0:
        return
    if not math.isfinite(draft.temperature) or draft.temperature < 0:
        raise invalid_field("sampling.temperature", "must be a finite number, at least 0", value=draft.temperature)
    raise invalid_field(
        "sampling.temperature",
        "only greedy decoding exists yet: leave it out, or set it to 0",
        reason=EdgeReason.SAMPLING_UNSUPPORTED,
        value=draft.temperature,
        limit=0,
    )


def _check_input(given: InputDraft, limits: EdgeLimits) -> None:
    match given:
        case TextDraft():
            _check_text("text.text", (given.text,), limits)
        case IdsDraft():
            if not given.token_ids:
                raise invalid_field("tokens.token_ids", "is empty", reason=EdgeReason.INPUT_MISSING)
        case ChatDraft():
            count = len(given.messages)
            if not count:
                raise invalid_field("chat.messages", "is empty", reason=EdgeReason.INPUT_MISSING)
            if count > limits.messages_max:
                raise invalid_field("chat.messages", "are too many", value=count, limit=limits.messages_max)
            _check_text("chat.messages", tuple(message.content for message in given.messages), limits)


def _check_text(field_name: str, texts: tuple[str, ...], limits: EdgeLimits) -> None:
    if field_name == "text.text" and not texts[0]:
        raise invalid_field(field_name, "is empty", reason=EdgeReason.INPUT_MISSING)
    size_bytes = sum(len(text.encode()) for text in texts)
    if size_bytes > limits.text_bytes_max:
        raise invalid_field(
            field_name,
            f"is larger than {limits.text_bytes_max} bytes",
            value=size_bytes,
            limit=limits.text_bytes_max,
        )
