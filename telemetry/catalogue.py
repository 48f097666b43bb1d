"""Writes docs/telemetry.md from the names and their tables, or with --check says that it differs.

Run from the root of the repository: python -m telemetry.catalogue [--check]
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from telemetry.meanings import ATTRIBUTES, EVENTS, ON_ANY_SPAN, ON_EVENTS, ON_LINKS, RELATIONS, SPANS, SpanMeaning
from telemetry.metrics.catalogue import METRICS, PAIRS, find_metric, prometheus_label, prometheus_name
from telemetry.names import Attr, Metric

PAGE = Path(__file__).parent.parent / "docs" / "telemetry.md"

_HEAD = """\
# Telemetry

What the server tells the world about itself, by name. This page is written by `python -m telemetry.catalogue` from the
tables in `telemetry/`; `make static` fails when it is out of date. [Observability](observability/README.md) has a
Jaeger, a Prometheus and a Grafana to look at it with.

- Spans and metrics go by OTLP over gRPC to `--otlp-endpoint`, or to where OpenTelemetry's own variables say.
- Metrics can be scraped by Prometheus from `http://HOST:PORT/metrics` with `--metrics-port`.
- Neither holds a prompt, an answer or a token id.
- `gen_ai.*`, `session.id`, `rpc.*` and `error.type` are OpenTelemetry's semantic conventions; `tenure.*` is ours.
"""
_SPANS = """
## Spans

One trace a turn, below the caller's span where a call names one. A session is followed through its turns by links and
by `session.id`.

"""
_METRICS = """
## Metrics

Counted while the server serves: the turn that warms it up is in none, and health probes are no turns. Histograms are
in seconds. Every counter begins at 0 with the process. Beside these, `target_info` has the version of the server
(`service_version`), and which run of it this is (`service_instance_id`). In Prometheus an `error_type` of `""` is a
turn that finished.
"""
_PAIRS = """
### Pairs

Both of a pair have the same series at all times and count the same things, so that one divides by the other without
further words: `rate(a[5m]) / rate(b[5m])` of counters, `a / b` of gauges. No metric is a share or a percentage itself.
"""


def render() -> str:
    """The whole page."""
    parts = (
        _HEAD,
        _SPANS,
        _table(("span", "when", "holds", "events", "links"), map(_span_row, SPANS)),
        "\n### Events\n\n",
        _table(
            ("event", "means", "holds"),
            ((_code(name), meaning, _codes(ON_EVENTS[name])) for name, meaning in EVENTS.items()),
        ),
        f"\n### Links\n\nAttribute {_code(ON_LINKS[0])} of a link:\n\n",
        _table(("relation", "the other span is"), ((_code(name), text) for name, text in RELATIONS.items())),
        "\n### Attributes\n\n",
        _table(("attribute", "means", "of"), map(_attribute_row, ATTRIBUTES.items())),
        _METRICS,
        "\n",
        _table(("metric", "type", "unit", "labels", "in Prometheus", "counts"), map(_metric_row, METRICS)),
        "\nUpper bounds of the buckets, in seconds:\n\n",
        _table(
            ("histogram", "bounds"), ((_code(each.name), _numbers(each.buckets)) for each in METRICS if each.buckets)
        ),
        "\nLabels in Prometheus:\n\n",
        _table(("label", "attribute"), ((_code(prometheus_label(label)), _code(label)) for label in _labels())),
        _PAIRS,
        "\n",
        _table(("a", "b", "a / b is"), map(_pair_row, ((pair.part, pair.whole, pair.meaning) for pair in PAIRS))),
    )
    return "".join(parts)


def _span_row(span: SpanMeaning) -> tuple[str, ...]:
    return _code(span.name), span.when, _codes(span.attributes), _codes(span.events), _codes(span.links)


def _attribute_row(item: tuple[Attr, str]) -> tuple[str, ...]:
    attribute, meaning = item
    spans = [_code(span.name) for span in SPANS if attribute in span.attributes]
    events = [f"event {_code(name)}" for name, held in ON_EVENTS.items() if attribute in held]
    others = [text for held, text in ((ON_LINKS, "links"), (ON_ANY_SPAN, "any span")) if attribute in held]
    if attribute in _labels():
        others.append("metrics")
    return _code(attribute), meaning, ", ".join((*spans, *events, *others))


def _metric_row(metric: Metric) -> tuple[str, ...]:
    unit = _code(metric.unit) if metric.unit else ""
    name = _code(prometheus_name(metric))
    return _code(metric.name), metric.kind, unit, _codes(metric.labels), name, metric.description


def _pair_row(pair: tuple[str, str, str]) -> tuple[str, ...]:
    part, whole, meaning = pair
    return _code(prometheus_name(find_metric(part))), _code(prometheus_name(find_metric(whole))), meaning


def _labels() -> list[Attr]:
    """All that metrics have, in the order of the names."""
    used = {label for metric in METRICS for label in metric.labels}
    return [attribute for attribute in Attr if attribute in used]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, *rows)
    first, *others = (f"| {' | '.join(line)} |\n" for line in lines)
    return "".join((first, f"|{'---|' * len(head)}\n", *others))


def _code(text: str) -> str:
    return f"`{text}`"


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, texts))


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def main() -> int:
    """Returns the exit status: 1 when --check found a difference."""
    parser = argparse.ArgumentParser(description="docs/telemetry.md, from the names of telemetry.")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    is_check = parser.parse_args().check
    page = render()
    if PAGE.exists() and PAGE.read_text("utf-8") == page:
        return 0
    if is_check:
        sys.stdout.write("docs/telemetry.md differs, run `python -m telemetry.catalogue`\n")
        return 1
    PAGE.write_text(page, "utf-8")
    sys.stdout.write("docs/telemetry.md: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
