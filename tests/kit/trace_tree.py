"""Spans as a collector got them, as nested plain data without ids and times: what a golden file holds."""

from collections.abc import Mapping, Sequence

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

TIMES = ("tenure.turn.queue_time", "tenure.step.host_time", "tenure.step.device_time")
"""Attributes that differ from run to run."""
Tree = dict[str, object]


class TraceForest:
    """Every span has a place: its trace's label and, where several in there have its name, which of them it is."""

    def __init__(self, spans: Sequence[Span], labels: Mapping[str, str]) -> None:
        """`labels`: of trace ids, 32 hexadecimal digits; others are numbered by when they begin."""
        self._spans = sorted(spans, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))
        self._labels = dict(labels)
        for span in self._spans:
            self._labels.setdefault(span.trace_id.hex(), f"trace {len(self._labels) - len(labels) + 1}")
        self._places: dict[tuple[bytes, bytes], str] = {}
        counts: dict[tuple[bytes, str], int] = {}
        for span in self._spans:
            key = span.trace_id, span.name
            counts[key] = counts.get(key, 0) + 1
            place = f"{self._labels[span.trace_id.hex()]}: {span.name}"
            self._places[span.trace_id, span.span_id] = place + (f" {counts[key]}" if counts[key] > 1 else "")

    def trees(self) -> dict[str, list[Tree]]:
        """By trace, in the order of their labels: the spans whose parent is not here, each with those below it."""
        known = {(span.trace_id, span.span_id) for span in self._spans}
        forest: dict[str, list[Tree]] = {label: [] for label in self._labels.values()}
        for span in self._spans:
            if (span.trace_id, span.parent_span_id) not in known:
                forest[self._labels[span.trace_id.hex()]].append(self._draw(span))
        return forest

    def _draw(self, span: Span) -> Tree:
        tree: Tree = {"span": self._places[span.trace_id, span.span_id], "kind": Span.SpanKind.Name(span.kind)}
        if span.status.code != Status.STATUS_CODE_UNSET:
            tree["status"] = f"{Status.StatusCode.Name(span.status.code)} {span.status.message}".strip()
        tree["attributes"] = _facts(span.attributes)
        if span.events:
            tree["events"] = [{event.name: _facts(event.attributes)} for event in span.events]
        if span.links:
            tree["links"] = [
                f"{_facts(link.attributes)['tenure.link']} -> {self._places.get((link.trace_id, link.span_id), '?')}"
                for link in span.links
            ]
        below = [
            self._draw(child)
            for child in self._spans
            if child.trace_id == span.trace_id and child.parent_span_id == span.span_id
        ]
        if below:
            tree["below"] = below
        return tree


def _facts(attributes: Sequence[KeyValue]) -> dict[str, object]:
    return {
        each.key: _value(each.value) for each in sorted(attributes, key=lambda each: each.key) if each.key not in TIMES
    }


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
