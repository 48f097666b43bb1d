"""What the client sends: each option in its place, nothing that was left out, and no number that has no room."""

import pytest

from protos.v1 import types_pb2
from services.client.requests import Message, SamplingOptions, TurnInput, build_request

OPTIONS: list[SamplingOptions] = [
    {"max_tokens": 5},
    {"temperature": 0.0},
    {"top_k": 0},
    {"top_p": 1.0},
    {"seed": 2**63 - 1},
    {"stop": ("a", "b")},
    {"ignore_eos": True},
]
OUTSIDE: list[tuple[str, SamplingOptions]] = [
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("top_k", {"top_k": 2**31}),
    ("max_tokens", {"max_tokens": 2**63}),
]


def test_build_request_when_every_option_is_tried_then_all_fields_of_the_protocol_are() -> None:
    assert {name for option in OPTIONS for name in option} == set(types_pb2.SamplingParams.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_build_request_when_an_option_is_given_then_it_alone_is_sent(options: SamplingOptions) -> None:
    sampling = build_request(TurnInput(text="x"), "t", options).sampling
    assert [field.name for field, _value in sampling.ListFields()] == list(options)


@pytest.mark.parametrize(("name", "options"), OUTSIDE)
def test_build_request_when_a_number_has_no_place_in_the_protocol_then_it_is_named(
    name: str, options: SamplingOptions
) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* is out of range"):
        build_request(TurnInput(text="x"), "t", options)


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
