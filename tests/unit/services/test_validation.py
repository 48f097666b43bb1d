"""The gate: each field absent, minimal, maximal and past it."""

import math
import re
from dataclasses import replace

import grpc
import pytest

from engine.core.ids import pack_ids
from engine.core.sampling import SEED_MAX, Sampling
from engine.runtime.handle import Base, TurnOptions
from services.drafts import (
    ChatDraft,
    ForkDraft,
    IdsDraft,
    ListDraft,
    OpenDraft,
    Prompt,
    ResumeDraft,
    TextDraft,
    TurnDraft,
    UnknownEnum,
)
from services.errors import CallError
from services.limits import LIMITS
from services.tokenization.chat import ChatMessage
from services.validation import (
    require_known,
    validate,
    validate_abort,
    validate_fork,
    validate_list,
    validate_open,
    validate_resume,
    validate_turn,
)

TURN = TurnDraft(
    session_id=None,
    turn_id=None,
    parent=None,
    input=IdsDraft((1, 2)),
    max_tokens=None,
    temperature=None,
    ignore_eos=False,
)
OPEN = OpenDraft(session_id=None, streaming=True, idle_timeout_s=None)
LONG = "x" * (LIMITS.name_chars_max + 1)


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


@pytest.mark.parametrize(
    "draft",
    [
        TURN,
        replace(TURN, session_id="s", turn_id="t", parent="p"),
        replace(TURN, session_id=LONG[:-1]),
        replace(TURN, turn_id="naïve/1: two"),
        replace(TURN, max_tokens=1),
        replace(TURN, max_tokens=2**63 - 1),
        replace(TURN, temperature=0.0),
        replace(TURN, temperature=-0.0),
        replace(TURN, input=TextDraft(" ")),
        replace(TURN, input=TextDraft("x" * LIMITS.text_bytes_max)),
        replace(TURN, input=ChatDraft((user(""),))),
        replace(TURN, input=ChatDraft((user("x"),) * LIMITS.messages_max)),
    ],
)
def test_validate_turn_when_every_field_is_in_range_then_its_input_passes(draft: TurnDraft) -> None:
    assert validate_turn(draft) == draft.input


@pytest.mark.parametrize(
    ("draft", "field", "reason"),
    [
        (replace(TURN, session_id=""), "session_id", "FIELD_INVALID"),
        (replace(TURN, session_id=LONG), "session_id", "FIELD_INVALID"),
        (replace(TURN, turn_id="a\nb"), "turn_id", "FIELD_INVALID"),
        (replace(TURN, parent="\x00"), "parent_turn_id", "FIELD_INVALID"),
        (replace(TURN, max_tokens=0), "sampling.max_tokens", "FIELD_INVALID"),
        (replace(TURN, max_tokens=-(2**63)), "sampling.max_tokens", "FIELD_INVALID"),
        (replace(TURN, temperature=-math.inf), "sampling.temperature", "FIELD_INVALID"),
        (replace(TURN, top_k=-1), "sampling.top_k", "FIELD_INVALID"),
        (replace(TURN, top_k=-(2**31)), "sampling.top_k", "FIELD_INVALID"),
        (replace(TURN, top_p=0.0), "sampling.top_p", "FIELD_INVALID"),
        (replace(TURN, top_p=1.0001), "sampling.top_p", "FIELD_INVALID"),
        (replace(TURN, top_p=math.nan), "sampling.top_p", "FIELD_INVALID"),
        (replace(TURN, top_p=math.inf), "sampling.top_p", "FIELD_INVALID"),
        (replace(TURN, seed=2**63 + 5), "sampling.seed", "FIELD_INVALID"),
        (replace(TURN, stop=("a", "")), "sampling.stop", "FIELD_INVALID"),
        (replace(TURN, stop=("a" * (LIMITS.stop_chars_max + 1),)), "sampling.stop", "FIELD_INVALID"),
        (replace(TURN, stop=("a",) * (LIMITS.stops_max + 1)), "sampling.stop", "FIELD_INVALID"),
        (replace(TURN, temperature=-1.0), "sampling.temperature", "FIELD_INVALID"),
        (replace(TURN, temperature=math.nan), "sampling.temperature", "FIELD_INVALID"),
        (replace(TURN, temperature=math.inf), "sampling.temperature", "FIELD_INVALID"),
        (replace(TURN, input=None), "input", "INPUT_MISSING"),
        (replace(TURN, input=IdsDraft(())), "tokens.token_ids", "INPUT_MISSING"),
        (replace(TURN, input=TextDraft("")), "text.text", "INPUT_MISSING"),
        (replace(TURN, input=TextDraft("é" * LIMITS.text_bytes_max)), "text.text", "FIELD_INVALID"),
        (replace(TURN, input=ChatDraft(())), "chat.messages", "INPUT_MISSING"),
        (replace(TURN, input=ChatDraft((user("x"),) * (LIMITS.messages_max + 1))), "chat.messages", "FIELD_INVALID"),
        (
            replace(TURN, input=ChatDraft((user("x" * LIMITS.text_bytes_max), user("x")))),
            "chat.messages",
            "FIELD_INVALID",
        ),
    ],
)
def test_validate_turn_when_a_field_can_not_be_then_refused_by_name(draft: TurnDraft, field: str, reason: str) -> None:
    with pytest.raises(CallError) as caught:
        validate_turn(draft)
    problem = caught.value.problem
    assert (problem.code, problem.field_name, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, field, reason)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf])
def test_validate_open_when_idle_timeout_can_not_be_then_refused(timeout_s: float) -> None:
    with pytest.raises(CallError, match="idle_timeout_s"):
        validate_open(replace(OPEN, idle_timeout_s=timeout_s))


@pytest.mark.parametrize("draft", [OPEN, replace(OPEN, session_id="s", idle_timeout_s=1e-9)])
def test_validate_open_when_in_range_then_passes(draft: OpenDraft) -> None:
    validate_open(draft)


SAMPLED = replace(TURN, temperature=0.7, top_k=2**31 - 1, top_p=1.0, seed=SEED_MAX, stop=("x" * LIMITS.stop_chars_max,))


@pytest.mark.parametrize("draft", [SAMPLED, replace(TURN, stop=("s",) * LIMITS.stops_max), replace(TURN, seed=0)])
def test_validate_turn_when_sampling_is_at_its_limits_then_passes(draft: TurnDraft) -> None:
    assert validate_turn(draft) is draft.input


RESUME = ResumeDraft(session_id=None, turn_id="t", from_token=0, held_digest=None)


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (replace(RESUME, turn_id=""), "turn_id"),
        (replace(RESUME, session_id=""), "session_id"),
        (replace(RESUME, from_token=-1), "from_token"),
        (replace(RESUME, held_digest=b"short"), "held_ids_sha256"),
    ],
)
def test_validate_resume_when_a_field_can_not_be_then_refused_by_name(draft: ResumeDraft, field: str) -> None:
    with pytest.raises(CallError) as caught:
        validate_resume(draft)
    assert caught.value.problem.field_name == field


def test_validate_resume_when_in_range_then_passes() -> None:
    validate_resume(replace(RESUME, from_token=2**62, held_digest=bytes(32)))


FORK = ForkDraft(session_id="s", new_session_id=None, at_turn=None, at_len=None)


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (replace(FORK, session_id=""), "session_id"),
        (replace(FORK, new_session_id=""), "new_session_id"),
        (replace(FORK, new_session_id=LONG), "new_session_id"),
        (replace(FORK, at_turn="\n"), "at_turn_id"),
    ],
)
def test_validate_fork_when_a_field_can_not_be_then_refused_by_name(draft: ForkDraft, field: str) -> None:
    with pytest.raises(CallError) as caught:
        validate_fork(draft)
    assert caught.value.problem.field_name == field


def test_validate_fork_when_in_range_then_passes() -> None:
    validate_fork(replace(FORK, new_session_id="f", at_turn="t", at_len=-1))  # lengths are the core's to judge


def test_require_known_when_an_enum_has_a_number_without_a_name_then_refused_by_name() -> None:
    require_known(None)
    with pytest.raises(CallError, match="mode: has a value that this server does not know; known are A, B") as caught:
        require_known(UnknownEnum("mode", 9, ("A", "B")))
    assert caught.value.problem.metadata == {"value": "9"}


@pytest.mark.parametrize(
    ("page_size", "expected"), [(0, LIMITS.list_page_default), (1, 1), (LIMITS.list_page_max, LIMITS.list_page_max)]
)
def test_validate_list_when_in_range_then_the_size_of_the_page(page_size: int, expected: int) -> None:
    assert validate_list(ListDraft(page_size, "")) == expected


@pytest.mark.parametrize("page_size", [-1, LIMITS.list_page_max + 1])
def test_validate_list_when_page_size_can_not_be_then_refused(page_size: int) -> None:
    with pytest.raises(CallError, match="page_size"):
        validate_list(ListDraft(page_size, ""))


def test_validate_when_ids_are_given_then_the_request_holds_all_of_it() -> None:
    draft = replace(SAMPLED, session_id="s", parent="p", max_tokens=5, ignore_eos=True, options=TurnOptions(offset=2))
    prompt = Prompt([7, 8], Base(3, 9))
    request = validate(draft, prompt, turn_id="t", seed=1, deadline_s=2.0, content=b"c")
    assert (request.turn_id, request.session_id, request.parent) == ("t", "s", "p")
    assert (request.input_ids, request.max_tokens) == (pack_ids([7, 8]), 5)
    assert (request.ignore_eos, request.deadline_s) == (True, 2.0)
    assert request.sampling == Sampling(0.7, 2**31 - 1, 1.0, SEED_MAX)
    assert (request.stop_strings, request.content, request.base) == (draft.stop, b"c", Base(3, 9))
    assert request.options is draft.options


def test_validate_when_sampling_is_left_out_then_greedy_with_the_seed_of_the_server() -> None:
    request = validate(TURN, Prompt([7]), turn_id="t", seed=17, deadline_s=None)
    assert request.sampling == Sampling(seed=17)
    assert request.sampling.is_greedy


def test_validate_when_input_gave_no_ids_then_refused() -> None:
    with pytest.raises(CallError, match="nothing to answer"):
        validate(TURN, Prompt([]), turn_id="t", seed=0, deadline_s=None)


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        (replace(TURN, turn_id=""), "turn_id: is empty; leave it out to have one chosen"),
        (replace(TURN, session_id=""), "session_id: is empty; leave it out for a turn without a session"),
        (replace(TURN, parent=""), "parent_turn_id: is empty; leave it out for a turn that follows none"),
        (
            replace(TURN, input=ChatDraft((user("x"),) * (LIMITS.messages_max + 1))),
            f"chat.messages: are too many: at most {LIMITS.messages_max}",
        ),
    ],
)
def test_validate_turn_when_refused_then_the_message_says_what_would_do(draft: TurnDraft, told: str) -> None:
    with pytest.raises(CallError, match=re.escape(told)):
        validate_turn(draft)


def test_validate_fork_and_abort_when_an_optional_name_is_empty_then_said_what_leaving_it_out_means() -> None:
    with pytest.raises(CallError, match="leave it out for all that the session has"):
        validate_fork(replace(FORK, at_turn=""))
    with pytest.raises(CallError, match="leave it out for a turn without a session"):
        validate_abort("", "t")
    with pytest.raises(CallError, match="turn_id: is empty: which turn"):
        validate_abort("s", "")
