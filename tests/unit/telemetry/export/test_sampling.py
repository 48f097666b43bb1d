"""OTEL_TRACES_SAMPLER: each of its values, and none that it does not have."""

import pytest

from telemetry.export.sampling import EnvironmentSampler
from telemetry.export.variables import VariableError
from telemetry.spans.record import SpanContext
from telemetry.spans.tracer import Sampler

LOW, HIGH = "0" * 31 + "1", "f" * 32
"""Trace ids below and above any ratio."""


def decide(name: str | None, parent: bool | None, argument: str = "", trace_id: str = LOW) -> bool:
    environment = {"OTEL_TRACES_SAMPLER": name} if name is not None else {}
    sampler: Sampler = EnvironmentSampler(environment | {"OTEL_TRACES_SAMPLER_ARG": argument})
    above = None if parent is None else SpanContext(trace_id, "00f067aa0ba902b7", parent)
    return sampler.is_sampled(trace_id, above, "turn")


@pytest.mark.parametrize(
    ("name", "root", "below_sampled", "below_unsampled"),
    [
        (None, True, True, False),
        ("", True, True, False),
        ("parentbased_always_on", True, True, False),
        ("PARENTBASED_ALWAYS_ON", True, True, False),
        ("parentbased_always_off", False, True, False),
        ("always_on", True, True, True),
        ("always_off", False, False, False),
    ],
)
def test_is_sampled_when_a_fixed_sampler_then_as_its_name_says(
    name: str | None, root: bool, below_sampled: bool, below_unsampled: bool
) -> None:
    assert (decide(name, None), decide(name, True), decide(name, False)) == (root, below_sampled, below_unsampled)


def test_is_sampled_when_by_ratio_then_by_the_trace_id_alone_or_by_the_parent_first() -> None:
    assert [decide("traceidratio", None, "0.5", trace_id) for trace_id in (LOW, HIGH)] == [True, False]
    assert [decide("traceidratio", True, "0.5", trace_id) for trace_id in (LOW, HIGH)] == [True, False]
    assert [decide("parentbased_traceidratio", None, "0.5", trace_id) for trace_id in (LOW, HIGH)] == [True, False]
    assert [decide("parentbased_traceidratio", parent, "0.5", HIGH) for parent in (True, False)] == [True, False]


def test_is_sampled_when_a_ratio_has_no_argument_then_everything() -> None:
    assert decide("traceidratio", None, trace_id=HIGH)


def test_sampler_when_its_name_is_unknown_then_refused_by_the_variable_with_what_there_is() -> None:
    with pytest.raises(VariableError, match=r"OTEL_TRACES_SAMPLER must be one of always_on, .*, not 'jaeger_remote'"):
        EnvironmentSampler({"OTEL_TRACES_SAMPLER": "jaeger_remote"})


@pytest.mark.parametrize("text", ["half", "1.5", "-0.1", "nan"])
def test_sampler_when_its_ratio_can_not_be_then_refused_by_the_variable(text: str) -> None:
    with pytest.raises(VariableError, match="OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1"):
        EnvironmentSampler({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": text})
