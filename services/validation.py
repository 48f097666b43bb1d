"""The one gate: what passes here is finite, in range and of a size that the engine may be asked for.

What depends on the engine's state or on the model (context, pool, vocabulary, sessions) is refused by the core, with
the same kind of reason.
"""

import math

from engine.core.ids import SessionId, TurnId, pack_ids
from engine.core.sampling import SEED_MAX, Sampling
from engine.runtime.handle import NOBODY, Caller, TurnRequest
from services.drafts import (
    ChatDraft,
    ForkDraft,
    IdsDraft,
    InputDraft,
    ListDraft,
    OpenDraft,
    Prompt,
    ResumeDraft,
    TextDraft,
    TurnDraft,
    UnknownEnum,
)
from services.errors import EdgeReason, invalid_field
from services.limits import LIMITS, EdgeLimits

_SHA256_BYTES = 32
_NO_SESSION = "for a turn without a session"


def validate_open(draft: OpenDraft) -> None:
    """Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    check_name("session_id", draft.session_id)
    timeout_s = draft.idle_timeout_s
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise invalid_field("idle_timeout_s", "must be a finite number of seconds above 0", value=timeout_s)


def validate_fork(draft: ForkDraft) -> None:
    """Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    require_name("session_id", draft.session_id, "which session?")
    check_name("new_session_id", draft.new_session_id)
    check_name("at_turn_id", draft.at_turn, without="for all that the session has")


def require_known(unknown: UnknownEnum | None) -> None:
    """Raises CallError, INVALID_ARGUMENT, that names the values that there are."""
    if unknown is not None:
        known = ", ".join(unknown.known)
        message = f"has a value that this server does not know; known are {known}"
        raise invalid_field(unknown.field_name, message, value=unknown.number)


def validate_turn(draft: TurnDraft, limits: EdgeLimits = LIMITS) -> InputDraft:
    """The turn's input. Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    check_name("session_id", draft.session_id, without=_NO_SESSION)
    check_name("turn_id", draft.turn_id)
    check_name("parent_turn_id", draft.parent, without="for a turn that follows none")
    _check_sampling(draft, limits)
    if draft.input is None:
        raise invalid_field("input", "one of text, tokens and chat must be set", reason=EdgeReason.INPUT_MISSING)
    _check_input(draft.input, limits)
    return draft.input


def validate_abort(session_id: str | None, turn_id: str) -> None:
    """Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    check_name("session_id", session_id, without=_NO_SESSION)
    require_name("turn_id", turn_id, "which turn?")


def validate_resume(draft: ResumeDraft) -> None:
    """Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    validate_abort(draft.session_id, draft.turn_id)
    if draft.from_token < 0:
        raise invalid_field("from_token", "must be at least 0", value=draft.from_token, limit=0)
    if draft.held_digest is not None and len(draft.held_digest) != _SHA256_BYTES:
        size = len(draft.held_digest)
        raise invalid_field("held_ids_sha256", f"must be {_SHA256_BYTES} bytes", value=size, limit=_SHA256_BYTES)


def validate_list(draft: ListDraft, limits: EdgeLimits = LIMITS) -> int:
    """The size of the page. Raises CallError, INVALID_ARGUMENT, with field, value and limit."""
    size, size_max = draft.page_size, limits.list_page_max
    if not 0 <= size <= size_max:
        raise invalid_field(
            "page_size", f"must be from 1 to {size_max}, or 0 for the default", value=size, limit=size_max
        )
    return size or limits.list_page_default


def validate(
    draft: TurnDraft,
    prompt: Prompt,
    *,
    turn_id: str,
    seed: int,
    deadline_s: float | None,
    caller: Caller = NOBODY,
    content: bytes = b"",
) -> TurnRequest:
    """The immutable request, from a draft that passed `validate_turn` and the ids of its input.

    `seed` is what to take when the draft has none. `content`: of a turn that the client named, see `TurnRequest`.
    Raises CallError when there are no ids, or when one can not be a token id anywhere.
    """
    if not prompt.ids:
        raise invalid_field("input", "is empty: there is nothing to answer", reason=EdgeReason.INPUT_MISSING)
    return TurnRequest(
        turn_id=TurnId(turn_id),
        input_ids=pack_ids(prompt.ids),
        session_id=None if draft.session_id is None else SessionId(draft.session_id),
        parent=None if draft.parent is None else TurnId(draft.parent),
        max_tokens=draft.max_tokens,
        ignore_eos=draft.ignore_eos,
        sampling=Sampling(
            temperature=draft.temperature or 0.0,
            top_k=draft.top_k or 0,
            top_p=1.0 if draft.top_p is None else draft.top_p,
            seed=seed if draft.seed is None else draft.seed,
        ),
        stop_strings=draft.stop,
        content=content,
        base=prompt.base,
        deadline_s=deadline_s,
        caller=caller,
        options=draft.options,
    )


def require_name(field_name: str, name: str, question: str) -> None:
    """As `check_name`, for a name that has to be given."""
    if not name:
        raise invalid_field(field_name, f"is empty: {question}")
    check_name(field_name, name)


def check_name(
    field_name: str, name: str | None, limits: EdgeLimits = LIMITS, *, without: str = "to have one chosen"
) -> None:
    """Names of sessions and turns are printable and short, so that logs and traces can hold them as they are.

    `without`: what the field is left out for.
    """
    if name is None:
        return
    if not name:
        raise invalid_field(field_name, f"is empty; leave it out {without}")
    if len(name) > limits.name_chars_max:
        raise invalid_field(
            field_name,
            f"is longer than {limits.name_chars_max} characters",
            value=len(name),
            limit=limits.name_chars_max,
        )
    if not name.isprintable():
        raise invalid_field(field_name, "has characters that can not be printed")


def _check_sampling(draft: TurnDraft, limits: EdgeLimits) -> None:
    if draft.max_tokens is not None and draft.max_tokens < 1:
        raise invalid_field(
            "sampling.max_tokens", "must be at least 1; leave it out for all that fits", value=draft.max_tokens, limit=1
        )
    temperature, top_k, top_p, seed = draft.temperature, draft.top_k, draft.top_p, draft.seed
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise invalid_field("sampling.temperature", "must be a finite number, at least 0", value=temperature, limit=0)
    if top_k is not None and top_k < 0:
        raise invalid_field("sampling.top_k", "must be at least 0; 0 is all tokens", value=top_k, limit=0)
    # Written so that NaN fails it.
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid_field("sampling.top_p", "must be above 0 and at most 1", value=top_p, limit=1)
    if seed is not None and not 0 <= seed <= SEED_MAX:
        raise invalid_field("sampling.seed", f"must be from 0 to {SEED_MAX}", value=seed, limit=SEED_MAX)
    _check_stops(draft.stop, limits)


def _check_stops(stops: tuple[str, ...], limits: EdgeLimits) -> None:
    name, chars_max = "sampling.stop", limits.stop_chars_max
    if len(stops) > limits.stops_max:
        raise invalid_field(name, f"has more than {limits.stops_max} texts", value=len(stops), limit=limits.stops_max)
    for stop in stops:
        if not stop:
            raise invalid_field(name, "has an empty text, which would end every answer at once", value=0, limit=1)
        if len(stop) > chars_max:
            raise invalid_field(name, f"has a text of over {chars_max} characters", value=len(stop), limit=chars_max)


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
                message = f"are too many: at most {limits.messages_max}"
                raise invalid_field("chat.messages", message, value=count, limit=limits.messages_max)
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
