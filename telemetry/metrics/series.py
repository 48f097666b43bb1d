"""From the sink's numbers to the series of each metric: the one table of which number goes under which name."""

from collections.abc import Callable, Iterator, Mapping

from engine.core.ownership import Move
from engine.core.snapshot import PoolBooks
from telemetry.metrics.buckets import Buckets
from telemetry.metrics.reading import MoveKey, Reading
from telemetry.metrics.sink import MetricsSink, Tallies
from telemetry.names import SCOPE, Attr, MetricName, Source, Term

Labels = Mapping[str, str]
Row = tuple[Labels, int]
OPERATION = "generate"
"""What a turn does: the engine is not told whether its prompt was a chat."""
_NONE: Labels = {}


def _plain(value: int) -> list[Row]:
    return [(_NONE, value)]


def _by(label: Attr, counts: Mapping[str, int]) -> list[Row]:
    return [({label: value}, count) for value, count in counts.items()]


def _by_pool(reading: Reading, count: Callable[[PoolBooks], int]) -> list[Row]:
    return [({Attr.POOL: books.pool}, count(books)) for books in reading.pools]


def _terms(reading: Reading) -> list[Row]:
    return [
        ({Attr.POOL: books.pool, Attr.OWNER: term}, value)
        for books in reading.pools
        for term, value in (
            (Term.AVAILABLE, books.available),
            (Term.EVICTABLE, books.evictable),
            (Term.PROTECTED, books.protected),
            (Term.SESSION_HELD, books.session_held),
            (Term.UNCACHED, books.uncached),
        )
    ]


def _moves(counts: Mapping[MoveKey, int]) -> list[Row]:
    return [({Attr.MOVE: move, Attr.POOL: pool}, count) for (move, pool), count in counts.items()]


def _evictions(reading: Reading) -> list[Row]:
    return [({Attr.POOL: pool}, count) for (move, pool), count in reading.moved_units.items() if move is Move.EVICT]


def _sources(reading: Reading) -> dict[str, int]:
    return {
        Source.SLOT: reading.tokens_from_slot,
        Source.TREE: reading.tokens_from_tree,
        Source.COMPUTED: reading.tokens_to_compute,
    }


def _context(reading: Reading) -> list[Row]:
    sources = _sources(reading)
    return _by(Attr.SOURCE, dict.fromkeys(sources, sum(sources.values())))


SERIES: dict[MetricName, Callable[[Reading], list[Row]]] = {
    MetricName.POOL_UNITS: _terms,
    MetricName.POOL_SIZE: lambda reading: _by_pool(reading, lambda books: books.total),
    MetricName.POOL_DRAINING: lambda reading: _by_pool(reading, lambda books: books.draining),
    MetricName.POOL_QUARANTINED: lambda reading: _by_pool(reading, lambda books: books.quarantined),
    MetricName.KV_MOVES: lambda reading: _moves(reading.moves),
    MetricName.KV_MOVED: lambda reading: _moves(reading.moved_units),
    MetricName.KV_EVENTS: lambda reading: _plain(reading.kv_events),
    MetricName.EVICTIONS: _evictions,
    MetricName.DEMOTIONS: lambda reading: _plain(reading.demotions),
    MetricName.RETRACTIONS: lambda reading: _plain(reading.retractions),
    MetricName.PROMPT_TOKENS: lambda reading: _by(Attr.SOURCE, _sources(reading)),
    MetricName.PROMPT_CONTEXT: _context,
    MetricName.GENERATED_TOKENS: lambda reading: _plain(reading.tokens_generated),
    MetricName.TURNS_ACCEPTED: lambda reading: _plain(reading.turns_accepted),
    MetricName.TURNS_ENDED: lambda reading: _by(Attr.OUTCOME, reading.endings),
    MetricName.TURNS_WAITING: lambda reading: _plain(reading.turns_waiting),
    MetricName.TURNS_RUNNING: lambda reading: _plain(reading.turns_running),
    MetricName.SESSIONS_OPENED: lambda reading: _plain(reading.sessions_opened),
    MetricName.SESSIONS_CLOSED: lambda reading: _by(Attr.SESSION_REASON, reading.sessions_closed),
    MetricName.SESSIONS_OPEN: lambda reading: _plain(reading.sessions_open),
    MetricName.STEPS: lambda reading: _plain(reading.steps),
    MetricName.STEPS_FAILED: lambda reading: _plain(reading.steps_failed),
}
"""Of counters and gauges that come from one reading."""


def tally_rows(tallies: Tallies) -> list[Row]:
    return _by(Attr.SIGNAL, {signal: count() for signal, count in tallies.items()})


def histogram_rows(sink: MetricsSink) -> Iterator[tuple[MetricName, list[tuple[Labels, Buckets]]]]:
    """A reason for breaking off has a series once a turn was broken off for it."""
    times = sink.turn_times
    labels: Labels = model_labels(sink.model)
    yield MetricName.TIME_TO_FIRST_TOKEN, [(labels, times.first_token.read())]
    yield MetricName.TIME_PER_OUTPUT_TOKEN, [(labels, times.output_token.read())]
    broken_off: list[tuple[Labels, Buckets]] = [
        ({**labels, Attr.ERROR_TYPE: reason}, counts.read()) for reason, counts in times.broken_off.items()
    ]
    durations = [(labels, times.duration.read()), *(row for row in broken_off if row[1].num_values)]
    yield MetricName.REQUEST_DURATION, durations
    yield MetricName.STEP_HOST_TIME, [(_NONE, sink.host_s.read())]
    yield MetricName.STEP_DEVICE_TIME, [(_NONE, sink.device_s.read())]
    yield MetricName.LOOP_LAG, [(_NONE, sink.lag_s.read())]


def model_labels(model: str) -> dict[str, str]:
    return {Attr.OPERATION: OPERATION, Attr.PROVIDER: SCOPE, Attr.REQUEST_MODEL: model}
