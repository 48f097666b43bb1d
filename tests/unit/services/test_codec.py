"""The codec, held against the descriptors: no field of a request is forgotten, no enum value is missing."""

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import SlotState, Usage
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.ownership import PoolKind
from engine.core.snapshot import PoolBooks, SessionState, Snapshot, TurnState
from engine.runtime.handle import Finished
from protos.v1 import admin_pb2, generate_pb2, session_pb2, types_pb2
from services.client.pools import decode_pools
from services.codec import FINISH_REASONS, decode_open, decode_turn, encode_finished, encode_pools
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
