"""What the client sends: each option in its place, nothing that was left out, and no number that has no room."""

import math
from collections.abc import Awaitable, Callable

import pytest

from protos.v1 import generate_pb2, types_pb2
from services.client import Client, OptionError, connect
from services.client.requests import (
    Message,
    SamplingOptions,
    SessionTurnOptions,
    TurnInput,
    build_request,
)

OPTIONS: list[SamplingOptions] = [
    {"max_tokens": 5},
    {"temperature": 0.0},
    {"top_k": 0},
    {"top_p": 1.0},
    {"seed": 2**63 - 1},
    {"stop": ("a", "b")},
    {"ignore_eos": True},
]
SESSION_OPTIONS: list[tuple[SessionTurnOptions, str, int]] = [
    ({"priority": 0}, "priority", 0),
    ({"draft_tokens": 4}, "draft_tokens", 4),
    ({"replace": True}, "mode", generate_pb2.TURN_MODE_REPLACE),
    ({"offset": 0}, "offset", 0),
    ({"drop_previous_output": True}, "drop_previous_output", True),
    ({"keep_on_abort": True}, "on_abort", generate_pb2.ON_ABORT_KEEP),
]
OUTSIDE: list[tuple[str, SessionTurnOptions]] = [
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("top_k", {"top_k": 2**31}),
    ("max_tokens", {"max_tokens": 2**63}),
    ("priority", {"priority": 2**31}),
    ("draft_tokens", {"draft_tokens": -(2**31) - 1}),
]


def test_build_request_when_every_option_is_tried_then_all_fields_of_the_protocol_are() -> None:
    assert {name for option in OPTIONS for name in option} == set(types_pb2.SamplingParams.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_build_request_when_an_option_is_given_then_it_alone_is_sent(options: SamplingOptions) -> None:
    sampling = build_request(TurnInput(text="x"), "t", options).sampling
    assert [field.name for field, _value in sampling.ListFields()] == list(options)


@pytest.mark.parametrize(("options", "field", "value"), SESSION_OPTIONS, ids=str)
def test_build_request_when_an_option_of_a_turn_is_given_then_it_alone_is_sent(
    options: SessionTurnOptions, field: str, value: int
) -> None:
    request = build_request(TurnInput(text="x"), "t", options)
    sent = {known.name: given for known, given in request.ListFields()}
    assert sent.keys() == {"turn_id", "text", "sampling", field}
    assert sent[field] == value


def test_build_request_when_every_option_of_a_turn_is_tried_then_all_there_are() -> None:
    tried = {name for options, _field, _value in SESSION_OPTIONS for name in options}
    assert tried | set(SamplingOptions.__annotations__) == set(SessionTurnOptions.__annotations__)


def test_build_request_when_options_are_off_then_nothing_is_sent() -> None:
    off: SessionTurnOptions = {"replace": False, "keep_on_abort": False, "offset": None, "draft_tokens": None}
    assert build_request(TurnInput(text="x"), "t", off) == build_request(TurnInput(text="x"), "t", {})


@pytest.mark.parametrize(("name", "options"), OUTSIDE)
def test_build_request_when_a_number_has_no_place_in_the_protocol_then_it_is_named(
    name: str, options: SessionTurnOptions
) -> None:
    with pytest.raises(OptionError, match=f"{name}: .* is out of range") as caught:
        build_request(TurnInput(text="x"), "t", options)
    assert caught.value.option == name


def test_build_request_when_options_are_none_then_nothing_is_sent() -> None:
    options: SamplingOptions = {"max_tokens": None, "temperature": None, "seed": None, "stop": ()}
    assert not build_request(TurnInput(text="x"), "t", options).sampling.ListFields()


def test_build_request_when_the_turn_has_no_name_then_one_is_chosen_each_time() -> None:
    names = {build_request(TurnInput(text="x"), None, {}).turn_id for _ in range(3)}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("given", "kind"),
    [(TurnInput(text=""), "text"), (TurnInput(token_ids=[]), "tokens"), (TurnInput(messages=[]), "chat")],
)
def test_build_request_when_the_input_is_empty_then_it_is_still_of_its_kind(given: TurnInput, kind: str) -> None:
    assert build_request(given, "t", {}).WhichOneof("input") == kind


def test_turn_input_when_not_exactly_one_is_given_then_refused() -> None:
    with pytest.raises(ValueError, match="not none"):
        TurnInput()
    with pytest.raises(ValueError, match="text, messages"):
        TurnInput(text="x", messages=[Message("user", "x")])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_token": 3}, "unknown option 'max_token'; did you mean 'max_tokens'?"),
        ({"speed": 3}, "unknown option 'speed'"),
        ({"stop": "the"}, "stop: give a list of texts, as in stop=\\['the'\\]"),
        ({"stop": b"the"}, "stop: give a list of texts"),
        ({"stop": [1]}, "stop: \\[1\\] is of the wrong type"),
        ({"max_tokens": "3"}, "max_tokens: '3' is of the wrong type"),
        ({"temperature": "hot"}, "temperature: 'hot' is of the wrong type"),
    ],
)
def test_build_request_when_an_option_is_a_slip_then_named(options: dict[str, object], told: str) -> None:
    slip: SamplingOptions = {}
    slip.update(options)  # type: ignore[typeddict-item]  # what callers do whose code nobody type-checks
    with pytest.raises(TypeError, match=told):
        build_request(TurnInput(text="x"), "t", slip)


def test_build_request_when_messages_are_no_messages_then_said_so() -> None:
    slip: list[Message] = []
    slip.append({"role": "user", "content": "x"})  # type: ignore[arg-type]  # as above
    with pytest.raises(TypeError, match="not dict"):
        build_request(TurnInput(messages=slip), "t", {})


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (TurnInput(text="a\udcffb"), "text"),
        (TurnInput(token_ids=[1, 2**31]), "token_ids: 2147483648 is out of range"),
        (TurnInput(messages=[Message("user", "\udcff")]), "messages"),
        (TurnInput(messages=[Message("\udcff", "x")]), "messages"),
    ],
)
def test_build_request_when_the_input_can_not_be_sent_then_it_is_named(given: TurnInput, option: str) -> None:
    with pytest.raises(OptionError, match=option):
        build_request(given, "t", {})


@pytest.mark.parametrize("name", ["turn_id", "stop"])
def test_build_request_when_a_text_is_no_utf_8_then_it_is_named(name: str) -> None:
    turn_id, options = ("\udcff", SamplingOptions()) if name == "turn_id" else ("t", SamplingOptions(stop=["\udcff"]))
    with pytest.raises(OptionError, match=f"{name}: has characters that are no text"):
        build_request(TurnInput(text="x"), turn_id, options)


HUGE = 10**20
CALLS: dict[str, tuple[str, Callable[[Client], object]]] = {
    "session ''": ("session_id", lambda client: client.session("")),
    "session of no text": ("session_id", lambda client: client.session("\udcff")),
    "session priority": ("priority", lambda client: client.session(priority=HUGE)),
    "parent": ("parent", lambda client: client.session("s").turn("x", parent="\udcff")),
    "fork ''": ("session_id", lambda client: client.session("s").fork("")),
    "fork of no text": ("session_id", lambda client: client.session("s").fork("\udcff")),
    "fork at_turn": ("at_turn", lambda client: client.session("s").fork(at_turn="\udcff")),
    "fork at_length": ("at_length", lambda client: client.session("s").fork(at_length=HUGE)),
    "truncate": ("length", lambda client: client.session("s").truncate(HUGE)),
    "explain": ("unit", lambda client: client.explain(-HUGE)),
    "explain pool": ("pool", lambda client: client.explain(1, "half")),
    "find_session": ("session_id", lambda client: client.find_session("\udcff")),
    "sessions": ("page_size", lambda client: anext(client.sessions(page_size=HUGE))),
    "timeout nan": ("timeout_s", lambda client: client.generate("x", timeout_s=math.nan)),
    "timeout inf": ("timeout_s", lambda client: client.generate("x", timeout_s=math.inf)),
    "timeout huge": ("timeout_s", lambda client: client.session("s").turn("x", timeout_s=HUGE)),
}


async def ask_for(client: Client, ask: Callable[[Client], object]) -> None:
    asked = ask(client)
    if isinstance(asked, Awaitable):
        await asked


@pytest.mark.parametrize("call", CALLS)
async def test_client_when_a_value_can_not_be_sent_then_the_option_is_named_and_nothing_is_sent(call: str) -> None:
    option, ask = CALLS[call]
    async with connect("127.0.0.1:1") as client:
        with pytest.raises(OptionError) as caught:
            await ask_for(client, ask)
    assert caught.value.option == option
