"""What a server remembers of its last hour, as its client sees it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protos.v1 import admin_pb2, history_pb2
from services.client.pools import Pool, decode_pool, find_pool


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval. Counts are of what happened in it, books and numbers of turns and sessions as at its end."""

    time_s: float
    """Its end, in seconds since 1970 by the server's clock, as all times here."""
    pools: tuple[Pool, ...]
    moves: Mapping[str, int]
    """Hand-overs by the name of the move."""
    moved_units: Mapping[str, int]
    steps: int
    steps_failed: int
    tokens_computed: int
    tokens_generated: int
    turns_ended: int
    sessions_open: int
    turns_running: int
    turns_waiting: int
    step_ms_p50: float
    """From plan to answer; 0 without any step."""
    step_ms_max: float
    first_token_ms_p50: float
    """From a turn's acceptance to its first token; 0 without any."""
    first_token_ms_max: float

    def find(self, kind: str) -> Pool:
        """The pool of that kind. Raises KeyError."""
        return find_pool(self.pools, kind)


@dataclass(frozen=True, slots=True)
class SessionFact:
    """Something that happened to a session or to its KV; fields as in the interface."""

    time_s: float
    session_id: str
    session_number: int
    what: str
    detail: str
    units: int
    tokens: int
    turn_id: str
    step: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the server began to serve."""

    turns_accepted: int
    endings: Mapping[str, int]
    """Turns that ended, by how."""
    moves: Mapping[str, int]
    tokens_from_slot: int
    tokens_from_tree: int
    tokens_to_compute: int
    tokens_generated: int
    steps: int
    steps_failed: int
    retractions: int
    demotions: int
    sessions_opened: int
    sessions_closed: Mapping[str, int]
    """By why."""


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered, oldest first."""

    now_s: float
    started_s: float
    interval_s: float
    samples: tuple[Sample, ...]
    facts: tuple[SessionFact, ...]
    facts_dropped: int
    totals: Totals


def decode_history(response: admin_pb2.GetHistoryResponse) -> History:
    return History(
        now_s=response.now_s,
        started_s=response.started_s,
        interval_s=response.interval_s,
        samples=tuple(map(_decode_sample, response.samples)),
        facts=tuple(map(_decode_fact, response.facts)),
        facts_dropped=response.facts_dropped,
        totals=_decode_totals(response.totals),
    )


def _decode_sample(sample: admin_pb2.HistorySample) -> Sample:
    return Sample(
        time_s=sample.time_s,
        pools=tuple(map(decode_pool, sample.pools)),
        moves=_decode_counts(sample.moves),
        moved_units=_decode_counts(sample.moved_units),
        steps=sample.steps,
        steps_failed=sample.steps_failed,
        tokens_computed=sample.tokens_computed,
        tokens_generated=sample.tokens_generated,
        turns_ended=sample.turns_ended,
        sessions_open=sample.sessions_open,
        turns_running=sample.turns_running,
        turns_waiting=sample.turns_waiting,
        step_ms_p50=sample.step_ms_p50,
        step_ms_max=sample.step_ms_max,
        first_token_ms_p50=sample.first_token_ms_p50,
        first_token_ms_max=sample.first_token_ms_max,
    )


def _decode_fact(fact: history_pb2.SessionFact) -> SessionFact:
    return SessionFact(
        time_s=fact.time_s,
        session_id=fact.session_id,
        session_number=fact.session_number,
        what=fact.what,
        detail=fact.detail,
        units=fact.units,
        tokens=fact.tokens,
        turn_id=fact.turn_id,
        step=fact.step,
    )


def _decode_totals(totals: history_pb2.Totals) -> Totals:
    return Totals(
        turns_accepted=totals.turns_accepted,
        endings=_decode_counts(totals.endings),
        moves=_decode_counts(totals.moves),
        tokens_from_slot=totals.tokens_from_slot,
        tokens_from_tree=totals.tokens_from_tree,
        tokens_to_compute=totals.tokens_to_compute,
        tokens_generated=totals.tokens_generated,
        steps=totals.steps,
        steps_failed=totals.steps_failed,
        retractions=totals.retractions,
        demotions=totals.demotions,
        sessions_opened=totals.sessions_opened,
        sessions_closed=_decode_counts(totals.sessions_closed),
    )


def _decode_counts(counts: Iterable[history_pb2.Count]) -> dict[str, int]:
    return {count.name: count.count for count in counts}
