"""The codec, held against the descriptors: no field of a request is forgotten, no enum value is missing."""

import pytest

from engine.core.commands import AbortReason, FinishReason, Lengths, OnAbort, TurnMode
from engine.core.events import SlotState, Usage
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.snapshot import SessionState, TurnState
from engine.runtime.handle import Delta, Finished, Started, TurnOptions
from protos.v1 import generate_pb2, session_pb2, types_pb2
from services.client.sessions import decode_session
from services.codec import (
    FINISH_REASONS,
    ON_ABORTS,
    TURN_MODES,
    decode_fork,
    decode_open,
    decode_resume,
    decode_turn,
    encode_delta,
    encode_finished,
    encode_fork,
    encode_sessions,
    encode_started,
    encode_truncate,
    find_unknown_enum,
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
    "mode": generate_pb2.GenerateRequest(mode=generate_pb2.TURN_MODE_REPLACE),
    "offset": generate_pb2.GenerateRequest(offset=0),
    "drop_previous_output": generate_pb2.GenerateRequest(drop_previous_output=True),
    "on_abort": generate_pb2.GenerateRequest(on_abort=generate_pb2.ON_ABORT_KEEP),
    "priority": generate_pb2.GenerateRequest(priority=0),
    "draft_tokens": generate_pb2.GenerateRequest(draft_tokens=1),
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


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (generate_pb2.GenerateRequest(mode=9), "mode"),  # type: ignore[arg-type]  # a newer client's
        (generate_pb2.GenerateRequest(on_abort=-1), "on_abort"),  # type: ignore[arg-type]  # as above
    ],
)
def test_find_unknown_enum_when_a_number_has_no_name_then_field_and_number(
    request_: generate_pb2.GenerateRequest, field: str
) -> None:
    unknown = find_unknown_enum(request_)
    assert unknown is not None
    assert (unknown.field_name, unknown.number) == (field, getattr(request_, field))
    assert [name for name in unknown.known if name.endswith(("_APPEND", "_ROLL_BACK"))] == [unknown.known[0]]
    assert not any(name.endswith("_UNSPECIFIED") for name in unknown.known)


@pytest.mark.parametrize("request_", REQUESTS.values())
def test_find_unknown_enum_when_all_have_names_then_none(request_: generate_pb2.GenerateRequest) -> None:
    assert find_unknown_enum(request_) is None


def test_enums_when_in_the_protocol_then_each_has_its_meaning_and_absent_is_the_default() -> None:
    assert set(TURN_MODES) == set(generate_pb2.TurnMode.values())
    assert set(ON_ABORTS) == set(generate_pb2.OnAbort.values())
    assert set(TURN_MODES.values()) == set(TurnMode)
    assert set(ON_ABORTS.values()) == set(OnAbort)
    assert EMPTY.options == TurnOptions()


FORKS = {
    "session_id": session_pb2.ForkRequest(session_id="s"),
    "new_session_id": session_pb2.ForkRequest(new_session_id=""),
    "at_turn_id": session_pb2.ForkRequest(at_turn_id=""),
    "at_length": session_pb2.ForkRequest(at_length=0),
}


@pytest.mark.parametrize("field", session_pb2.ForkRequest.DESCRIPTOR.fields_by_name)
def test_decode_fork_when_a_field_is_set_then_the_draft_differs(field: str) -> None:
    assert decode_fork(FORKS[field]) != decode_fork(session_pb2.ForkRequest())


def test_encode_lengths_when_forked_or_truncated_then_both_are_told() -> None:
    fork, rest = encode_fork("f", Lengths(9, 8)), encode_truncate(Lengths(7, 4))
    assert (fork.session_id, fork.session_len, fork.kv_tokens) == ("f", 9, 8)
    assert (rest.session_len, rest.kv_tokens) == (7, 4)


@pytest.mark.parametrize("is_committed", [True, False])
def test_encode_finished_when_aborted_then_says_whether_it_was_kept(is_committed: bool) -> None:
    finished = Finished(
        AbortReason.CLIENT, Usage(9, 0, 0, 9, 2, 0), history_len=9, is_committed=is_committed, drafted=7, accepted=3
    )
    message = encode_finished(finished).finished
    assert message.committed == is_committed
    assert (message.usage.drafted_tokens, message.usage.accepted_tokens) == (7, 3)


def test_encode_events_when_encoded_then_seed_start_and_attempt_are_told() -> None:
    started = encode_started("t", None, Started(3, 2, 8, seed=2**63 - 1, attempt=2)).started
    assert (started.seed, started.attempt, started.HasField("session_id")) == (2**63 - 1, 2, False)
    delta = encode_delta(Delta(7, (1, 2), "ab"), attempt=2).delta
    assert (delta.start, list(delta.token_ids), delta.text, delta.attempt) == (7, [1, 2], "ab", 2)


@pytest.mark.parametrize("stop_string", [None, "END"])
def test_encode_finished_when_stopped_then_the_stop_string_is_told_if_one_did(stop_string: str | None) -> None:
    finished = Finished(
        FinishReason.STOP, Usage(9, 0, 0, 9, 2, 0), history_len=None, is_committed=True, stop_string=stop_string
    )
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


def test_decode_open_when_optional_fields_are_absent_then_none() -> None:
    draft = decode_open(session_pb2.OpenRequest(streaming=True, priority=-3))
    assert (draft.session_id, draft.streaming, draft.idle_timeout_s, draft.priority) == (None, True, None, -3)


def test_finish_reasons_when_listed_then_all_are_there() -> None:
    assert set(FINISH_REASONS) == set(FinishReason)


@pytest.mark.parametrize("reason", AbortReason)
def test_encode_finished_when_aborted_then_abort_with_length_and_usage(reason: AbortReason) -> None:
    finished = Finished(reason, Usage(9, 5, 1, 3, 2, 1), history_len=6, is_committed=False)
    message = encode_finished(finished).finished
    assert message.finish_reason == types_pb2.FINISH_REASON_ABORT
    assert message.session_len == 6
    usage = message.usage
    assert (usage.context_tokens, usage.tokens_from_slot, usage.tokens_from_tree) == (9, 5, 1)
    assert (usage.tokens_computed, usage.completion_tokens, usage.retractions) == (3, 2, 1)


def test_encode_finished_when_no_session_then_no_length() -> None:
    finished = Finished(FinishReason.STOP, Usage(9, 0, 0, 9, 2, 0), history_len=None, is_committed=True)
    assert not encode_finished(finished).finished.HasField("session_len")


def session(name: str, slot: SlotState | None) -> SessionState:
    return SessionState(SessionId(name), True, 5, 0, slot, 4, 1)
