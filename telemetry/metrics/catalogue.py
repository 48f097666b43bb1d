"""Every metric: its name, what it counts in which unit, its labels, its buckets; and the pairs that may be divided."""

from dataclasses import dataclass

from telemetry.names import Attr, Kind, Metric, MetricName

MODEL_LABELS = (Attr.OPERATION, Attr.PROVIDER, Attr.REQUEST_MODEL)
_POOL_MOVES = (Attr.MOVE, Attr.POOL)

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
_OUTPUT_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""These three as OpenTelemetry's GenAI conventions list them."""
_HOST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_DEVICE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


def _counter(name: MetricName, unit: str, description: str, *labels: Attr) -> Metric:
    return Metric(name, Kind.COUNTER, unit, description, labels)


def _gauge(name: MetricName, unit: str, description: str, *labels: Attr) -> Metric:
    return Metric(name, Kind.GAUGE, unit, description, labels)


def _seconds(name: MetricName, buckets: tuple[float, ...], description: str, *labels: Attr) -> Metric:
    return Metric(name, Kind.HISTOGRAM, "s", description, labels, buckets)


METRICS: tuple[Metric, ...] = (
    _seconds(
        MetricName.TIME_TO_FIRST_TOKEN,
        _FIRST_TOKEN_S,
        "From the acceptance of a turn to its first token, of every turn that got one.",
        *MODEL_LABELS,
    ),
    _seconds(
        MetricName.TIME_PER_OUTPUT_TOKEN,
        _OUTPUT_TOKEN_S,
        "From a turn's first token to its last, divided by the tokens after the first; of turns with two or more.",
        *MODEL_LABELS,
    ),
    _seconds(
        MetricName.REQUEST_DURATION,
        _DURATION_S,
        "From the acceptance of a turn to its end; error.type is why it was broken off, if it was.",
        *MODEL_LABELS,
        Attr.ERROR_TYPE,
    ),
    _gauge(
        MetricName.POOL_UNITS,
        "{unit}",
        "Units of a pool by who has them: the five terms add up to the pool's size.",
        Attr.POOL,
        Attr.OWNER,
    ),
    _gauge(MetricName.POOL_SIZE, "{unit}", "Units of a pool, without padding and quarantine.", Attr.POOL),
    _gauge(
        MetricName.POOL_DRAINING,
        "{unit}",
        "Units that were given up, but stay with their owner until a step in flight is answered.",
        Attr.POOL,
    ),
    _gauge(
        MetricName.POOL_QUARANTINED,
        "{unit}",
        "Units that were taken out of use because nobody could say whose they are.",
        Attr.POOL,
    ),
    _counter(MetricName.KV_MOVES, "{move}", "Changes of owner, by kind and pool.", *_POOL_MOVES),
    _counter(MetricName.KV_MOVED, "{unit}", "Units that changed their owner, by kind and pool.", *_POOL_MOVES),
    _counter(
        MetricName.KV_EVENTS,
        "{event}",
        "Changes in the books: the number of the last one, as Admin.KvEvents numbers them.",
    ),
    _counter(MetricName.EVICTIONS, "{unit}", "Units that the prefix cache gave up.", Attr.POOL),
    _counter(MetricName.DEMOTIONS, "{session}", "Sessions that lost their slot, their KV going to the prefix cache."),
    _counter(MetricName.RETRACTIONS, "{turn}", "Turns that gave their KV back to make room, and waited again."),
    _counter(
        MetricName.PROMPT_TOKENS,
        "{token}",
        "Tokens of prompts at their first admission, by where their KV came from.",
        Attr.SOURCE,
    ),
    _counter(
        MetricName.PROMPT_CONTEXT,
        "{token}",
        "All tokens of those prompts: the same number beside each source, to divide by. Not to be added over sources.",
        Attr.SOURCE,
    ),
    _counter(MetricName.GENERATED_TOKENS, "{token}", "Tokens that were generated."),
    _counter(MetricName.TURNS_ACCEPTED, "{turn}", "Turns that were accepted."),
    _counter(MetricName.TURNS_ENDED, "{turn}", "Turns that ended, by how.", Attr.OUTCOME),
    _gauge(MetricName.TURNS_WAITING, "{turn}", "Turns that wait for room: the length of the queue."),
    _gauge(MetricName.TURNS_RUNNING, "{turn}", "Turns that have their place in a batch."),
    _counter(MetricName.SESSIONS_OPENED, "{session}", "Sessions that were opened."),
    _counter(MetricName.SESSIONS_CLOSED, "{session}", "Sessions that were closed, by why.", Attr.SESSION_REASON),
    _gauge(MetricName.SESSIONS_OPEN, "{session}", "Sessions that are open."),
    _counter(MetricName.STEPS, "{step}", "Forwards that were answered, failed ones included."),
    _counter(MetricName.STEPS_FAILED, "{step}", "Forwards that failed."),
    _seconds(
        MetricName.STEP_HOST_TIME,
        _HOST_S,
        "What a step took of the event loop: planning, submitting, taking the answer and telling of it.",
    ),
    _seconds(MetricName.STEP_DEVICE_TIME, _DEVICE_S, "What a step took on the executor's device."),
    _seconds(MetricName.LOOP_LAG, _LAG_S, "How late the event loop ran what was due; measured ten times a second."),
    _counter(
        MetricName.TELEMETRY_SENT,
        "{item}",
        "What was told, by signal: spans and exports of metrics that a collector took, KV events that were numbered "
        "(`kv_events`) and published (`kv_feed`).",
        Attr.SIGNAL,
    ),
    _counter(MetricName.TELEMETRY_DROPPED, "{item}", "What was lost on its way out, by signal.", Attr.SIGNAL),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two metrics of the same things: they have the same series, so that one divides by the other as it is."""

    part: MetricName
    whole: MetricName
    meaning: str


PAIRS: tuple[Pair, ...] = (
    Pair(MetricName.PROMPT_TOKENS, MetricName.PROMPT_CONTEXT, "the share of a source in all prompts, 0 to 1"),
    Pair(MetricName.STEPS_FAILED, MetricName.STEPS, "the share of forwards that failed, 0 to 1"),
    Pair(MetricName.KV_MOVED, MetricName.KV_MOVES, "units a change of owner, at least 1"),
    Pair(MetricName.POOL_DRAINING, MetricName.POOL_SIZE, "the share of a pool that drains, 0 to 1"),
)

_SUFFIX = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: ""}


def find_metric(name: str) -> Metric:
    """Raises KeyError."""
    return _BY_NAME[name]


def prometheus_name(metric: Metric) -> str:
    """As it is scraped; a histogram's series have `_bucket`, `_sum` and `_count` behind it."""
    unit = "_seconds" if metric.unit == "s" else ""
    return f"{prometheus_label(metric.name)}{unit}{_SUFFIX[metric.kind]}"


def prometheus_label(name: str) -> str:
    return name.replace(".", "_")


_BY_NAME = {metric.name: metric for metric in METRICS}
