"""Who sends: what the variables add, and what they can not say."""

import pytest

from telemetry.export.resource import build_resource
from telemetry.export.variables import VariableError


def test_build_resource_when_nothing_is_set_then_the_service_its_version_and_the_sdk() -> None:
    attributes = build_resource({}, "one").attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("tenure", "one")
    assert attributes["service.version"]
    assert attributes["telemetry.sdk.language"] == "python"


def test_build_resource_when_built_twice_then_two_runs_differ() -> None:
    assert build_resource({}).attributes["service.instance.id"] != build_resource({}).attributes["service.instance.id"]


def test_build_resource_when_variables_are_set_then_the_name_goes_before_the_list() -> None:
    environment = {
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=a%2Cb, service.name=listed,service.instance.id=pod-0,",
        "OTEL_SERVICE_NAME": "named",
    }
    attributes = build_resource(environment).attributes
    assert attributes["service.name"] == "named"
    assert attributes["deployment.environment"] == "a,b"
    assert attributes["service.instance.id"] == "pod-0"


def test_build_resource_when_the_name_is_in_the_list_only_then_that() -> None:
    assert build_resource({"OTEL_RESOURCE_ATTRIBUTES": "service.name=x"}).attributes["service.name"] == "x"


@pytest.mark.parametrize("text", ["no-pair", "a=1,=2"])
def test_build_resource_when_a_pair_is_none_then_refused_by_the_name_of_the_variable(text: str) -> None:
    with pytest.raises(VariableError, match="OTEL_RESOURCE_ATTRIBUTES must be key=value"):
        build_resource({"OTEL_RESOURCE_ATTRIBUTES": text})


@pytest.mark.parametrize("name", ["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"])
def test_build_resource_when_a_variable_is_no_text_then_refused_by_its_name(name: str) -> None:
    with pytest.raises(VariableError, match=name):
        build_resource({name: "key=\udce4"})


def test_build_resource_when_used_as_a_key_then_equal_ones_are_one() -> None:
    one, same, other = build_resource({}, "one"), build_resource({}, "one"), build_resource({}, "other")
    assert {one: 1}.get(same) == 1
    assert other not in {one: 1}
