"""What is looked at before a call gets through: that core and executor fit, that a turn's name means what it meant."""

from dataclasses import asdict

from engine.core.commands import Submit
from engine.core.core import Core
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import Rid, TurnId, count_ids, slice_ids
from engine.executor.protocol import Capabilities
from engine.runtime.handle import StreamReason, StreamRefusal, TurnRequest
from engine.runtime.output import digest_ids


def to_submit(rid: Rid, turn: TurnRequest) -> Submit:
    """The command of a turn."""
    return Submit(
        rid=rid,
        turn_id=turn.turn_id,
        input_ids=turn.input_ids,
        session_id=turn.session_id,
        parent=turn.parent,
        max_tokens=turn.max_tokens,
        ignore_eos=turn.ignore_eos,
        sampling=turn.sampling,
        trace_id=turn.caller.trace_id,
        caller_span=turn.caller.span,
        **asdict(turn.options),
    )


def require_content(turn_id: TurnId, content: bytes, other: bytes) -> None:
    """Raises Refusal, TURN_EXISTS, when a turn of that name is another one."""
    if content != other:
        message = f"turn {turn_id!r} exists with another content; choose another id, or abort it if it runs"
        raise Refusal(RefusalReason.TURN_EXISTS, message, field="turn_id", value=turn_id)


def require_held(output_ids: bytes, from_token: int, held_digest: bytes | None) -> None:
    """Raises StreamRefusal when the reader can not hold what comes before `from_token` of these ids (int32 bytes)."""
    num_ids = count_ids(output_ids)
    has_them = from_token <= num_ids
    if held_digest is not None and not (has_them and digest_ids(slice_ids(output_ids, 0, from_token)) == held_digest):
        message = "the ids held are not those of this attempt: drop them, and resume from 0"
        raise StreamRefusal(StreamReason.ATTEMPT_CHANGED, message, field="held_ids_sha256")
    if not has_them:
        message = f"from_token: the turn has {num_ids} tokens so far"
        reason = StreamReason.FROM_TOKEN_INVALID
        raise StreamRefusal(reason, message, field="from_token", value=from_token, limit=num_ids)


def require_fit(core: Core, capabilities: Capabilities) -> None:
    """Raises ValueError when the core plans for another executor."""
    config = core.config
    pairs = {
        "page_size": (config.page_size, capabilities.page_size),
        "pool_pages": (config.pool_pages, capabilities.pool_pages),
        "num_rows": (config.num_rows, capabilities.num_rows),
        "vocab_size": (config.vocab_size, capabilities.vocab_size),
        "window": (config.window, capabilities.window),
        "swa_pages": (config.swa_pages, capabilities.swa_pages),
        "state_slots": (config.state_slots, capabilities.state_slots),
    }
    for name, (planned, available) in pairs.items():
        if planned != available:
            raise ValueError(f"{name}: the core plans for {planned}, the executor has {available}")
    if config.context_len > capabilities.context_len:
        raise ValueError(f"context_len {config.context_len} is above the executor's {capabilities.context_len}")
