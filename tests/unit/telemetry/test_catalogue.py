"""docs/telemetry.md is what the tables say, and the tables leave no name out."""

import pytest

from telemetry.catalogue import PAGE, render
from telemetry.meanings import ATTRIBUTES, EVENTS, ON_ANY_SPAN, ON_EVENTS, ON_LINKS, RELATIONS, SPANS
from telemetry.metrics.catalogue import METRICS, prometheus_name
from telemetry.names import Attr, EventName, Metric, Relation, SpanName


def test_page_when_rendered_then_it_is_the_one_in_docs() -> None:
    assert PAGE.read_text("utf-8") == render(), "run python -m telemetry.catalogue"


def test_tables_when_read_then_each_span_event_and_relation_is_there_and_used() -> None:
    assert set(SpanName) <= {span.name for span in SPANS}
    assert set(EVENTS) == set(ON_EVENTS) == set(EventName) == {event for span in SPANS for event in span.events}
    assert set(RELATIONS) == set(Relation) == {relation for span in SPANS for relation in span.links}


def test_attributes_when_read_then_each_has_its_meaning_and_its_place() -> None:
    on_spans = {attribute for span in SPANS for attribute in span.attributes}
    on_events = {attribute for held in ON_EVENTS.values() for attribute in held}
    labels = {label for metric in METRICS for label in metric.labels}
    assert set(ATTRIBUTES) == on_spans | on_events | labels | {*ON_LINKS, *ON_ANY_SPAN} == set(Attr)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_page_when_read_then_each_metric_with_both_its_names(metric: Metric) -> None:
    assert f"| `{metric.name}` |" in render()
    assert f"| `{prometheus_name(metric)}` |" in render()
