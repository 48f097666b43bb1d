"""Protobuf messages ↔ plain values. Translates; judges nothing."""

from collections.abc import Sequence
from typing import assert_never

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import SlotState, Usage
from engine.core.ids import SessionId
from engine.core.invariants import Report
from engine.core.ownership import PoolKind
from engine.core.snapshot import PoolBooks, SessionState, Snapshot, TurnState
from engine.executor.protocol import Capabilities
from engine.runtime.handle import Delta, Finished, Started
from protos.v1 import admin_pb2, generate_pb2, session_pb2, types_pb2
from services.drafts import ChatDraft, IdsDraft, InputDraft, ListDraft, OpenDraft, ResumeDraft, TextDraft, TurnDraft
from services.tokenization.chat import ChatMessage

FINISH_REASONS: dict[FinishReason, types_pb2.FinishReason.ValueType] = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}

POOL_KINDS: dict[PoolKind, admin_pb2.PoolKind.ValueType] = {
    PoolKind.FULL: admin_pb2.POOL_KIND_FULL,
    PoolKind.ROWS: admin_pb2.POOL_KIND_ROWS,
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
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        stop=tuple(sampling.stop),
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


def encode_started(turn_id: str, session_id: str | None, started: Started) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        started=generate_pb2.TurnStarted(
            turn_id=turn_id,
            session_id=session_id,
            prompt_tokens=started.context_len,
            new_tokens=started.new_len,
            max_tokens=started.max_tokens,
            seed=started.seed,
            attempt=started.attempt,
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
            usage=_encode_usage(finished.usage),
            session_len=finished.history_len,
            stop_string=finished.stop_string,
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
        )
        for state in sessions
    ]


def encode_model(
    capabilities: Capabilities, context_len: int, snapshot: Snapshot, features: Sequence[str]
) -> admin_pb2.GetModelResponse:
    return admin_pb2.GetModelResponse(
        name=capabilities.name,
        context_len=context_len,
        vocab_size=capabilities.vocab_size,
        page_size=snapshot.page_size,
        pools=[admin_pb2.PoolSize(kind=POOL_KINDS[books.pool], total=books.total) for books in _shown(snapshot.pools)],
        features=features,
    )


def encode_report(report: Report, checks_run: int) -> admin_pb2.CheckResponse:
    findings = [admin_pb2.CheckFinding(law=finding.law, message=finding.message) for finding in report.findings]
    return admin_pb2.CheckResponse(findings=findings, checks_run=checks_run)


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
