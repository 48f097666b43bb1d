"""The codec, held against the descriptors: no field of a request is forgotten, no enum value is missing."""

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import SlotState, Usage
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.invariants import CheckLevel, Finding, Report
from engine.core.ownership import PoolKind
from engine.core.snapshot import PoolBooks, SessionState, Snapshot, TurnState
from engine.executor.protocol import Capabilities
from engine.runtime.handle import Delta, Finished, Started
from protos.v1 import admin_pb2, generate_pb2, session_pb2, types_pb2
from services.client.model import decode_check, decode_model
from services.client.pools import decode_pools
from services.client.sessions import decode_session
from services.codec import (
    FINISH_REASONS,
    decode_open,
    decode_resume,
    decode_turn,
    encode_delta,
    encode_finished,
    encode_model,
    encode_pools,
    encode_report,
    encode_sessions,
    encode_started,
)
from services.drafts import ChatDraft, IdsDraft, TextDraft
from services.tokenization.chat import ChatMessage

EMPTY = decode_turn(generate_pb2.GenerateRequest())

REQUESTS = {
    "session_id": generate_pb2.GenerateRequest(session_id="s"),
    "turn_id": generate_pb2.GenerateRequest(turn_id="t"),
    "text": generate_pb2.GenerateRequest(text=types_pb2.TextInput(text="hi")),
    "tokens": generate_pb2.GenerateRequest(tokens=types_pb2.TokenInput(token_ids=[1])),
    "chat": generate_pb2.GenerateRequest(chat=types_pb2.ChatInput()),
    "parent_turn_id": generate_pb2.GenerateRequest(parent_turn_id="p"),
    "sampling": generate_pb2.GenerateRequest(sampling=types_pb2.SamplingParams(max_tokens=3)),
}
SAMPLINGS = {
    "max_tokens": types_pb2.SamplingParams(max_tokens=0),
    "temperature": types_pb2.SamplingParams(temperature=0.0),
    "ignore_eos": types_pb2.SamplingParams(ignore_eos=True),
    "top_k": types_pb2.SamplingParams(top_k=0),
    "top_p": types_pb2.SamplingParams(top_p=0.0),
    "seed": types_pb2.SamplingParams(seed=0),
    "stop": types_pb2.SamplingParams(stop=[""]),
}


@pytest.mark.parametrize("field", generate_pb2.GenerateRequest.DESCRIPTOR.fields_by_name)
def test_decode_turn_when_a_field_is_set_then_the_draft_differs(field: str) -> None:
    assert decode_turn(REQUESTS[field]) != EMPTY


@pytest.mark.parametrize("field", types_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
def test_decode_turn_when_a_sampling_field_is_set_to_zero_then_it_is_not_absent(field: str) -> None:
    assert decode_turn(generate_pb2.GenerateRequest(sampling=SAMPLINGS[field])) != EMPTY


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (REQUESTS["text"], TextDraft("hi")),
        (REQUESTS["tokens"], IdsDraft((1,))),
        (
            generate_pb2.GenerateRequest(
                chat=types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="hi")])
            ),
            ChatDraft((ChatMessage("user", "hi"),)),
        ),
        (generate_pb2.GenerateRequest(), None),
    ],
)
def test_decode_turn_when_input_is_given_then_it_is_of_that_kind(
    request_: generate_pb2.GenerateRequest, expected: object
) -> None:
    assert decode_turn(request_).input == expected


RESUMES = {
    "session_id": generate_pb2.ResumeRequest(session_id=""),
    "turn_id": generate_pb2.ResumeRequest(turn_id="t"),
    "from_token": generate_pb2.ResumeRequest(from_token=3),
    "held_ids_sha256": generate_pb2.ResumeRequest(held_ids_sha256=b""),
}


@pytest.mark.parametrize("field", generate_pb2.ResumeRequest.DESCRIPTOR.fields_by_name)
def test_decode_resume_when_a_field_is_set_then_the_draft_differs(field: str) -> None:
    assert decode_resume(RESUMES[field]) != decode_resume(generate_pb2.ResumeRequest())


def test_encode_events_when_encoded_then_seed_start_and_attempt_are_told() -> None:
    started = encode_started("t", None, Started(3, 2, 8, seed=2**63 - 1, attempt=2)).started
    assert (started.seed, started.attempt, started.HasField("session_id")) == (2**63 - 1, 2, False)
    delta = encode_delta(Delta(7, (1, 2), "ab"), attempt=2).delta
    assert (delta.start, list(delta.token_ids), delta.text, delta.attempt) == (7, [1, 2], "ab", 2)


@pytest.mark.parametrize("stop_string", [None, "END"])
def test_encode_finished_when_stopped_then_the_stop_string_is_told_if_one_did(stop_string: str | None) -> None:
    finished = Finished(FinishReason.STOP, Usage(9, 0, 0, 9, 2, 0), history_len=None, stop_string=stop_string)
    message = encode_finished(finished).finished
    assert message.HasField("stop_string") == (stop_string is not None)
    assert message.stop_string == (stop_string or "")


@pytest.mark.parametrize("slot", [None, *SlotState])
def test_encode_sessions_when_any_slot_then_the_client_names_its_state(slot: SlotState | None) -> None:
    info = decode_session(encode_sessions([session("a", slot)], [])[0])
    assert info.kv_state in ("none", "held", "lent", "demoted")


def test_encode_sessions_when_turns_are_live_then_each_is_with_its_session() -> None:
    turns = [
        TurnState(Rid(1), TurnId("t1"), SessionId("a"), "running", 1, 0, 0, 1, 1),
        TurnState(Rid(2), TurnId("t2"), None, "running", 1, 0, 0, 1, 1),
    ]
    first, second = map(decode_session, encode_sessions([session("a", SlotState.LENT), session("b", None)], turns))
    assert (first.session_id, first.live_turn_ids, first.kv_tokens, first.kv_pages) == ("a", ("t1",), 4, 1)
    assert (second.session_id, second.live_turn_ids, second.session_len) == ("b", (), 5)


def test_encode_model_when_decoded_by_the_client_then_all_of_it_is_there() -> None:
    capabilities = Capabilities("m", (PoolKind.FULL,), 16, 129, 65, 2048, 256, 1)
    snapshot = Snapshot(16, (books(PoolKind.FULL, 4), books(PoolKind.ROWS, 4)), (), (), 0, 0, 0)
    model = decode_model(encode_model(capabilities, 512, snapshot, ("chat",)))
    assert (model.name, model.context_len, model.vocab_size, model.page_size) == ("m", 512, 256, 16)
    assert (model.pools, model.features) == ({"full": 10, "rows": 10}, ("chat",))


def test_encode_report_when_something_was_found_then_law_and_message_are_told() -> None:
    report = decode_check(encode_report(Report(CheckLevel.FULL, (Finding("census", "page 3"),)), checks_run=9))
    assert (report.is_clean, report.checks_run) == (False, 9)
    assert [(finding.law, finding.message) for finding in report.findings] == [("census", "page 3")]


def test_decode_open_when_optional_fields_are_absent_then_none() -> None:
    draft = decode_open(session_pb2.OpenRequest(streaming=True))
    assert (draft.session_id, draft.streaming, draft.idle_timeout_s) == (None, True, None)


def test_finish_reasons_when_listed_then_all_are_there() -> None:
    assert set(FINISH_REASONS) == set(FinishReason)


@pytest.mark.parametrize("reason", AbortReason)
def test_encode_finished_when_aborted_then_abort_with_length_and_usage(reason: AbortReason) -> None:
    finished = Finished(reason, Usage(9, 5, 1, 3, 2, 1), history_len=6)
    message = encode_finished(finished).finished
    assert message.finish_reason == types_pb2.FINISH_REASON_ABORT
    assert message.session_len == 6
    usage = message.usage
    assert (usage.context_tokens, usage.tokens_from_slot, usage.tokens_from_tree) == (9, 5, 1)
    assert (usage.tokens_computed, usage.completion_tokens, usage.retractions) == (3, 2, 1)


def test_encode_finished_when_no_session_then_no_length() -> None:
    finished = Finished(FinishReason.STOP, Usage(9, 0, 0, 9, 2, 0), history_len=None)
    assert not encode_finished(finished).finished.HasField("session_len")


def books(pool: PoolKind, available: int) -> PoolBooks:
    return PoolBooks(pool, 10, available, 1, 2, 3, 0, draining=1, quarantined=0)


def turn(rid: int, pages: int, in_flight: int) -> TurnState:
    return TurnState(Rid(rid), TurnId("t"), None, "running", 1, 0, 0, pages, in_flight)


def session(name: str, slot: SlotState | None) -> SessionState:
    return SessionState(SessionId(name), True, 5, 0, slot, 4, 1)


def test_encode_pools_when_decoded_by_the_client_then_every_term_is_there() -> None:
    snapshot = Snapshot(
        page_size=16,
        pools=(books(PoolKind.FULL, 4), books(PoolKind.ROWS, 4)),
        turns=(turn(1, pages=2, in_flight=1), turn(2, pages=0, in_flight=0)),
        sessions=(session("a", SlotState.HELD), session("b", SlotState.DEMOTED), session("c", None)),
        steps=7,
        in_flight=1,
        checks_run=8,
    )
    stats = decode_pools(encode_pools(snapshot))
    full, rows = stats.pools
    assert (full.kind, full.page_size, rows.kind, rows.page_size) == ("full", 16, "rows", 0)
    assert (full.total, full.available, full.evictable, full.protected) == (10, 4, 1, 2)
    assert (full.session_held, full.uncached, full.draining, full.quarantined) == (3, 0, 1, 0)
    assert (stats.turns_running, stats.turns_waiting) == (1, 1)
    assert (stats.sessions_open, stats.slots_held, stats.slots_demoted) == (3, 1, 1)
    assert (stats.steps, stats.checks_run, stats.balanced) == (7, 8, True)


def test_encode_pools_when_one_does_not_add_up_then_not_balanced() -> None:
    snapshot = Snapshot(16, (books(PoolKind.FULL, 4), books(PoolKind.ROWS, 5)), (), (), 0, 0, 0)
    assert not encode_pools(snapshot).balanced


def test_pool_kinds_when_in_the_protocol_then_the_client_names_them() -> None:
    for number in admin_pb2.PoolKind.values():
        response = admin_pb2.PoolStatsResponse(pools=[admin_pb2.Pool(kind=number)])
        assert decode_pools(response).pools[0].kind.startswith("kind ") == (number == 0)
