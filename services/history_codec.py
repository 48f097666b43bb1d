"""What is remembered of the last hour → protobuf, within the limit of a message."""

from collections.abc import Mapping, Sequence

from protos.v1 import admin_pb2, history_pb2
from services.admin_codec import encode_pool
from services.limits import LIMITS
from telemetry.history_records import History, Sample, SessionFact, Totals

_FRAMING_BYTES = 64
"""What is left free: the number of dropped facts is larger once facts are cut."""


def encode_history(history: History, page_size: int, *, with_facts: bool = True) -> admin_pb2.GetHistoryResponse:
    """Leaves out the oldest facts that do not fit into a message, and counts them as dropped.

    Takes a tenth of a second for a full hour. Reads nothing that changes: any thread may run it.
    """
    response = admin_pb2.GetHistoryResponse(
        now_s=history.now_s,
        started_s=history.started_s,
        interval_s=history.interval_s,
        samples=[_encode_sample(sample, page_size) for sample in history.samples],
        totals=_encode_totals(history.totals),
    )
    if not with_facts:
        return response
    facts = _newest_facts(history.facts, LIMITS.message_bytes_max - _FRAMING_BYTES - response.ByteSize())
    response.facts.extend(facts)
    response.facts_dropped = history.facts_dropped + len(history.facts) - len(facts)
    return response


def _newest_facts(facts: Sequence[SessionFact], bytes_max: int) -> list[history_pb2.SessionFact]:
    """As many of the newest as fit, oldest first."""
    fitting: list[history_pb2.SessionFact] = []
    for fact in reversed(facts):
        encoded = _encode_fact(fact)
        size = encoded.ByteSize()
        bytes_max -= size + _prefix_bytes(size)
        if bytes_max < 0:
            break
        fitting.append(encoded)
    fitting.reverse()
    return fitting


def _prefix_bytes(size: int) -> int:
    """Of the field's tag, and of the length before a message of so many bytes: 7 bits of it in each byte."""
    return 1 + max(1, -(-size.bit_length() // 7))


def _encode_sample(sample: Sample, page_size: int) -> admin_pb2.HistorySample:
    return admin_pb2.HistorySample(
        time_s=sample.time_s,
        pools=[encode_pool(books, page_size) for books in sample.pools],
        moves=_encode_counts(sample.moves),
        moved_units=_encode_counts(sample.moved_units),
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


def _encode_fact(fact: SessionFact) -> history_pb2.SessionFact:
    return history_pb2.SessionFact(
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


def _encode_totals(totals: Totals) -> history_pb2.Totals:
    return history_pb2.Totals(
        turns_accepted=totals.turns_accepted,
        endings=_encode_counts(totals.endings),
        moves=_encode_counts(totals.moves),
        tokens_from_slot=totals.tokens_from_slot,
        tokens_from_tree=totals.tokens_from_tree,
        tokens_to_compute=totals.tokens_to_compute,
        tokens_generated=totals.tokens_generated,
        steps=totals.steps,
        steps_failed=totals.steps_failed,
        retractions=totals.retractions,
        demotions=totals.demotions,
        sessions_opened=totals.sessions_opened,
        sessions_closed=_encode_counts(totals.sessions_closed),
    )


def _encode_counts(counts: Mapping[str, int]) -> list[history_pb2.Count]:
    return [history_pb2.Count(name=name, count=count) for name, count in counts.items()]
