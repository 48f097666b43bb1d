"""Protobuf messages ↔ plain values. Translates; judges nothing."""

from collections.abc import Sequence
from typing import assert_never

from google.protobuf.message import Message

from engine.core.commands import AbortReason, FinishReason, Lengths, OnAbort, TurnMode
from engine.core.events import SlotState
from engine.core.ids import SessionId
from engine.core.snapshot import SessionState, TurnState
from engine.runtime.handle import Delta, Finished, Started, TurnOptions
from protos.v1 import generate_pb2, session_pb2, types_pb2
from services.drafts import (
    ChatDraft,
    ForkDraft,
    IdsDraft,
    InputDraft,
    ListDraft,
    OpenDraft,
    ResumeDraft,
    TextDraft,
    TurnDraft,
    UnknownEnum,
)
from services.tokenization.chat import ChatMessage

FINISH_REASONS: dict[FinishReason, types_pb2.FinishReason.ValueType] = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}

TURN_MODES: dict[generate_pb2.TurnMode.ValueType, TurnMode] = {
    generate_pb2.TURN_MODE_UNSPECIFIED: TurnMode.APPEND,
    generate_pb2.TURN_MODE_APPEND: TurnMode.APPEND,
    generate_pb2.TURN_MODE_REPLACE: TurnMode.REPLACE,
}

ON_ABORTS: dict[generate_pb2.OnAbort.ValueType, OnAbort] = {
    generate_pb2.ON_ABORT_UNSPECIFIED: OnAbort.ROLL_BACK,
    generate_pb2.ON_ABORT_ROLL_BACK: OnAbort.ROLL_BACK,
    generate_pb2.ON_ABORT_KEEP: OnAbort.KEEP,
}

KV_STATES: dict[SlotState | None, session_pb2.KvState.ValueType] = {
    None: session_pb2.KV_STATE_NONE,
    SlotState.EMPTY: session_pb2.KV_STATE_NONE,
    SlotState.RELEASED: session_pb2.KV_STATE_NONE,
    SlotState.HELD: session_pb2.KV_STATE_HELD,
    SlotState.LENT: session_pb2.KV_STATE_LENT,
    SlotState.COMMITTING: session_pb2.KV_STATE_LENT,
    SlotState.RETURNING: session_pb2.KV_STATE_LENT,
    SlotState.DEMOTED: session_pb2.KV_STATE_DEMOTED,
}


def find_unknown_enum(message: Message) -> UnknownEnum | None:
    """A field of `message` itself whose value this server has no name for."""
    for field, value in message.ListFields():
        if field.enum_type is not None and value not in field.enum_type.values_by_number:
            known = tuple(each.name for each in field.enum_type.values if each.number)
            return UnknownEnum(field.name, value, known)
    return None


def decode_open(request: session_pb2.OpenRequest) -> OpenDraft:
    return OpenDraft(
        session_id=request.session_id if request.HasField("session_id") else None,
        streaming=request.streaming,
        idle_timeout_s=request.idle_timeout_s if request.HasField("idle_timeout_s") else None,
        priority=request.priority,
    )


def decode_fork(request: session_pb2.ForkRequest) -> ForkDraft:
    return ForkDraft(
        session_id=request.session_id,
        new_session_id=request.new_session_id if request.HasField("new_session_id") else None,
        at_turn=request.at_turn_id if request.HasField("at_turn_id") else None,
        at_len=request.at_length if request.HasField("at_length") else None,
    )


def decode_turn(request: generate_pb2.GenerateRequest) -> TurnDraft:
    """Of a request without an unknown enum."""
    sampling = request.sampling
    return TurnDraft(
        session_id=request.session_id if request.HasField("session_id") else None,
        turn_id=request.turn_id if request.HasField("turn_id") else None,
        parent=request.parent_turn_id if request.HasField("parent_turn_id") else None,
        input=_decode_input(request),
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        ignore_eos=sampling.ignore_eos,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        stop=tuple(sampling.stop),
        options=TurnOptions(
            mode=TURN_MODES[request.mode],
            offset=request.offset if request.HasField("offset") else None,
            drop_previous_output=request.drop_previous_output,
            on_abort=ON_ABORTS[request.on_abort],
            priority=request.priority if request.HasField("priority") else None,
            draft_tokens=request.draft_tokens,
        ),
    )


def decode_resume(request: generate_pb2.ResumeRequest) -> ResumeDraft:
    return ResumeDraft(
        session_id=request.session_id if request.HasField("session_id") else None,
        turn_id=request.turn_id,
        from_token=request.from_token,
        held_digest=request.held_ids_sha256 if request.HasField("held_ids_sha256") else None,
    )


def decode_list(request: session_pb2.ListRequest) -> ListDraft:
    return ListDraft(request.page_size, request.page_token)


def _decode_input(request: generate_pb2.GenerateRequest) -> InputDraft | None:
    match request.WhichOneof("input"):
        case "text":
            return TextDraft(request.text.text)
        case "tokens":
            return IdsDraft(tuple(request.tokens.token_ids))
        case "chat":
            return ChatDraft(tuple(ChatMessage(each.role, each.content) for each in request.chat.messages))
        case None:
            return None
        case unknown:
            assert_never(unknown)


def encode_started(
    turn_id: str, session_id: str | None, started: Started, trace_id: str = ""
) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        started=generate_pb2.TurnStarted(
            turn_id=turn_id,
            session_id=session_id,
            prompt_tokens=started.context_len,
            new_tokens=started.new_len,
            max_tokens=started.max_tokens,
            seed=started.seed,
            attempt=started.attempt,
            trace_id=trace_id,
        )
    )


def encode_delta(delta: Delta, attempt: int) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        delta=generate_pb2.TokenDelta(token_ids=delta.token_ids, text=delta.text, start=delta.start, attempt=attempt)
    )


def encode_finished(finished: Finished) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        finished=generate_pb2.TurnFinished(
            finish_reason=_encode_outcome(finished.outcome),
            usage=_encode_usage(finished),
            session_len=finished.history_len,
            stop_string=finished.stop_string,
            committed=finished.is_committed,
        )
    )


def _encode_outcome(outcome: FinishReason | AbortReason) -> types_pb2.FinishReason.ValueType:
    return types_pb2.FINISH_REASON_ABORT if isinstance(outcome, AbortReason) else FINISH_REASONS[outcome]


def _encode_usage(finished: Finished) -> types_pb2.Usage:
    usage = finished.usage
    return types_pb2.Usage(
        context_tokens=usage.context_len,
        tokens_from_slot=usage.tokens_from_slot,
        tokens_from_tree=usage.tokens_from_tree,
        tokens_computed=usage.tokens_computed,
        completion_tokens=usage.output_len,
        retractions=usage.retractions,
        drafted_tokens=finished.drafted,
        accepted_tokens=finished.accepted,
    )


def encode_fork(session_id: str, lengths: Lengths) -> session_pb2.ForkResponse:
    return session_pb2.ForkResponse(session_id=session_id, session_len=lengths.history_len, kv_tokens=lengths.kv_len)


def encode_truncate(lengths: Lengths) -> session_pb2.TruncateResponse:
    return session_pb2.TruncateResponse(session_len=lengths.history_len, kv_tokens=lengths.kv_len)


def encode_sessions(sessions: Sequence[SessionState], turns: Sequence[TurnState]) -> list[session_pb2.SessionInfo]:
    """`turns`: all live ones."""
    live: dict[SessionId | None, list[str]] = {}
    for turn in turns:
        live.setdefault(turn.session_id, []).append(turn.turn_id)
    return [
        session_pb2.SessionInfo(
            session_id=state.session_id,
            streaming=state.streaming,
            session_len=state.history_len if state.streaming else 0,
            live_turn_ids=live.get(state.session_id, []),
            kv_state=KV_STATES[state.slot],
            kv_tokens=state.kv_committed_len,
            kv_pages=state.pages,
            swa_pages=state.swa_pages,
            states=state.states,
        )
        for state in sessions
    ]
