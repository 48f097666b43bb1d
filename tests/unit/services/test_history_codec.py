"""What is remembered, on the wire: nothing is lost on the way, and the longest hour still fits into a message."""

from dataclasses import asdict, replace

from engine.core.commands import AbortReason, FinishReason
from engine.core.ownership import Move, PoolKind
from engine.core.snapshot import PoolBooks
from services.client.history import decode_history
from services.history_codec import encode_history
from services.limits import LIMITS
from telemetry.history_records import History, Sample, SessionFact, Totals

UNIX_S = 1_700_000_000.25
BIG = 2**40
MANY = 2**62
FULL = PoolBooks(PoolKind.FULL, 10, 1, 2, 3, 4, 0, draining=5, quarantined=6)
ROWS = PoolBooks(PoolKind.ROWS, 10, 1, 0, 0, 4, 5, draining=0, quarantined=0)
SAMPLE = Sample(
    time_s=UNIX_S,
    pools=(FULL, ROWS),
    moves={Move.GRANT: 3},
    moved_units={Move.GRANT: 7},
    steps=11,
    steps_failed=12,
    tokens_computed=13,
    tokens_generated=14,
    turns_ended=15,
    sessions_open=16,
    turns_running=17,
    turns_waiting=18,
    step_ms_p50=0.5,
    step_ms_max=1.5,
    first_token_ms_p50=2.5,
    first_token_ms_max=3.5,
    num_facts=2,
)
FACT = SessionFact(UNIX_S, "s", 3, "turn_ended", "stop", 5, 6, "t", 7)
TOTALS = Totals(
    turns_accepted=1,
    endings={FinishReason.STOP: 2, AbortReason.CLIENT: 3},
    moves={Move.PARK: 4},
    tokens_from_slot=5,
    tokens_from_tree=6,
    tokens_to_compute=7,
    tokens_generated=8,
    steps=9,
    steps_failed=10,
    retractions=11,
    demotions=12,
    sessions_opened=13,
    sessions_closed={AbortReason.SESSION_EXPIRED: 14},
)
HISTORY = History(UNIX_S + 1, UNIX_S - 1, 1.0, (SAMPLE,), (FACT,), 21, TOTALS)


def test_encode_history_when_decoded_by_the_client_then_all_of_it_is_there() -> None:
    decoded = decode_history(encode_history(HISTORY, page_size=16))
    assert asdict(decoded.totals) == asdict(TOTALS)
    assert [asdict(fact) for fact in decoded.facts] == [asdict(FACT)]
    assert (decoded.now_s, decoded.started_s, decoded.interval_s) == (UNIX_S + 1, UNIX_S - 1, 1.0)
    assert decoded.facts_dropped == 21
    (sample,) = decoded.samples
    told, expected = asdict(sample), asdict(SAMPLE)
    del told["pools"], expected["pools"], expected["num_facts"]
    assert told == expected
    for pool, books, kind, page_size in zip(sample.pools, (FULL, ROWS), ("full", "rows"), (16, 0), strict=True):
        terms = asdict(books) | {"kind": kind, "page_size": page_size}
        del terms["pool"]
        assert asdict(pool) == terms


def test_encode_history_when_without_facts_then_none_and_none_missed() -> None:
    decoded = decode_history(encode_history(HISTORY, page_size=16, with_facts=False))
    assert (decoded.facts, decoded.facts_dropped, len(decoded.samples)) == ((), 0, 1)


def test_encode_history_when_an_hour_is_full_to_the_brim_then_it_fits_with_the_newest_facts() -> None:
    counts = {move.value: BIG for move in Move}
    pool = PoolBooks(PoolKind.FULL, BIG, BIG, BIG, BIG, BIG, BIG, draining=BIG, quarantined=BIG)
    sample = replace(
        SAMPLE,
        pools=(pool, replace(pool, pool=PoolKind.ROWS)),
        moves=counts,
        moved_units=counts,
        steps=BIG,
        steps_failed=BIG,
        tokens_computed=BIG,
        tokens_generated=BIG,
        turns_ended=BIG,
    )
    name = "\N{GRINNING FACE}" * LIMITS.name_chars_max
    facts = tuple(replace(FACT, session_id=name, turn_id=name, detail=name, step=number) for number in range(20_000))
    full = replace(HISTORY, samples=(sample,) * 3600, facts=facts, facts_dropped=MANY)
    encoded = encode_history(full, page_size=BIG)
    size = len(encoded.SerializeToString())
    assert LIMITS.message_bytes_max - 3000 < size <= LIMITS.message_bytes_max
    assert len(encoded.samples) == 3600
    kept = len(encoded.facts)
    assert 0 < kept < 20_000
    assert [fact.step for fact in encoded.facts] == list(range(20_000 - kept, 20_000))
    assert encoded.facts_dropped == MANY + 20_000 - kept


def test_encode_history_when_facts_just_fit_then_none_is_cut() -> None:
    small = encode_history(replace(HISTORY, facts=(FACT,) * 20_000, facts_dropped=0), page_size=16)
    assert (len(small.facts), small.facts_dropped) == (20_000, 0)
