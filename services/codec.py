"""Protobuf messages ↔ plain values. Translates; judges nothing."""

from collections.abc import Sequence
from typing import assert_never

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import SlotState, Usage
from engine.core.ownership import PoolKind
from engine.core.snapshot import PoolBooks, Snapshot
from engine.runtime.handle import Delta, Finished, Started
from protos.v1 import admin_pb2, generate_pb2, session_pb2, types_pb2
from services.drafts import ChatDraft, IdsDraft, InputDraft, OpenDraft, TextDraft, TurnDraft
from services.tokenization.chat import ChatMessage

FINISH_REASONS: dict[FinishReason, types_pb2.FinishReason.ValueType] = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}

POOL_KINDS: dict[PoolKind, admin_pb2.PoolKind.ValueType] = {
    PoolKind.FULL: admin_pb2.POOL_KIND_FULL,
    PoolKind.ROWS: admin_pb2.POOL_KIND_ROWS,
}

_HOLDING_SLOTS = (SlotState.HELD, SlotState.LENT, SlotState.COMMITTING, SlotState.RETURNING)


def decode_open(request: session_pb2.OpenRequest) -> OpenDraft:
    return OpenDraft(
        session_id=request.session_id if request.HasField("session_id") else None,
        streaming=request.streaming,
        idle_timeout_s=request.idle_timeout_s if request.HasField("idle_timeout_s") else None,
    )


def decode_turn(request: generate_pb2.GenerateRequest) -> TurnDraft:
    sampling = request.sampling
    return TurnDraft(
        session_id=request.session_id if request.HasField("session_id") else None,
        turn_id=request.turn_id if request.HasField("turn_id") else None,
        parent=request.parent_turn_id if request.HasField("parent_turn_id") else None,
        input=_decode_input(request),
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        ignore_eos=sampling.ignore_eos,
    )


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


def encode_started(turn_id: str, session_id: str | None, started: Started) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        started=generate_pb2.TurnStarted(
            turn_id=turn_id,
            session_id=session_id,
            prompt_tokens=started.context_len,
            new_tokens=started.new_len,
            max_tokens=started.max_tokens,
        )
    )


def encode_delta(delta: Delta) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(delta=generate_pb2.TokenDelta(token_ids=delta.token_ids, text=delta.text))


def encode_finished(finished: Finished) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        finished=generate_pb2.TurnFinished(
            finish_reason=_encode_outcome(finished.outcome),
            usage=_encode_usage(finished.usage),
            session_len=finished.history_len,
        )
    )


def _encode_outcome(outcome: FinishReason | AbortReason) -> types_pb2.FinishReason.ValueType:
    return types_pb2.FINISH_REASON_ABORT if isinstance(outcome, AbortReason) else FINISH_REASONS[outcome]


def _encode_usage(usage: Usage) -> types_pb2.Usage:
    return types_pb2.Usage(
        context_tokens=usage.context_len,
        tokens_from_slot=usage.tokens_from_slot,
        tokens_from_tree=usage.tokens_from_tree,
        tokens_computed=usage.tokens_computed,
        completion_tokens=usage.output_len,
        retractions=usage.retractions,
    )


def encode_pools(snapshot: Snapshot) -> admin_pb2.PoolStatsResponse:
    running = sum(turn.pages > 0 or turn.in_flight > 0 for turn in snapshot.turns)
    slots = [session.slot for session in snapshot.sessions]
    return admin_pb2.PoolStatsResponse(
        pools=[_encode_pool(books, snapshot.page_size) for books in _shown(snapshot.pools)],
        sessions_open=len(snapshot.sessions),
        turns_running=running,
        turns_waiting=len(snapshot.turns) - running,
        slots_held=sum(slot in _HOLDING_SLOTS for slot in slots),
        slots_demoted=sum(slot is SlotState.DEMOTED for slot in slots),
        steps=snapshot.steps,
        checks_run=snapshot.checks_run,
        balanced=all(books.is_balanced for books in snapshot.pools),
    )


def _shown(pools: Sequence[PoolBooks]) -> list[PoolBooks]:
    unknown = [books.pool for books in pools if books.pool not in POOL_KINDS]
    assert not unknown, f"pools without a name in the protocol: {unknown}"
    return list(pools)


def _encode_pool(books: PoolBooks, page_size: int) -> admin_pb2.Pool:
    return admin_pb2.Pool(
        kind=POOL_KINDS[books.pool],
        total=books.total,
        available=books.available,
        evictable=books.evictable,
        protected=books.protected,
        session_held=books.session_held,
        uncached=books.uncached,
        draining=books.draining,
        quarantined=books.quarantined,
        page_size=0 if books.pool is PoolKind.ROWS else page_size,
    )
