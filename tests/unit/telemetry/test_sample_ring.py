"""Samples come out of the ring as they went in, and its memory is there from the start."""

import gc
import tracemalloc

from engine.core.ownership import Move, PoolKind
from engine.core.snapshot import PoolBooks
from telemetry.history_records import Sample
from telemetry.sample_ring import SampleRing

POOLS = (PoolKind.FULL, PoolKind.ROWS)


def make_sample(number: int) -> Sample:
    """Each number in it is another one."""
    counts = iter(range(2**40 + 100 * number, 2**40 + 100 * number + 100))
    return Sample(
        time_s=1.7e9 + number + 0.25,
        pools=tuple(PoolBooks(pool, *(next(counts) for _ in range(8))) for pool in POOLS),
        moves={Move.GRANT.value: next(counts), Move.EVICT.value: next(counts)},
        moved_units={Move.PARK.value: next(counts)},
        steps=next(counts),
        steps_failed=next(counts),
        tokens_computed=next(counts),
        tokens_generated=next(counts),
        turns_ended=next(counts),
        sessions_open=next(counts),
        turns_running=next(counts),
        turns_waiting=next(counts),
        step_ms_p50=0.125 + number,
        step_ms_max=0.25 + number,
        first_token_ms_p50=0.375 + number,
        first_token_ms_max=0.5 + number,
        num_facts=next(counts),
    )


def test_samples_when_read_then_each_is_what_was_appended_with_counts_that_are_whole() -> None:
    ring = SampleRing(POOLS, 10)
    for number in range(3):
        ring.append(5 * number, make_sample(number))
    read = list(ring.from_before(0))
    assert read == [(0, make_sample(0)), (5, make_sample(1)), (10, make_sample(2))]
    assert all(type(sample.steps) is int and type(sample.pools[0].total) is int for _, sample in read)


def test_ring_when_full_then_the_oldest_go_and_a_copy_stays_as_it_was() -> None:
    ring = SampleRing(POOLS, 4)
    for number in range(6):
        ring.append(number, make_sample(number))
    copied = ring.copy()
    ring.append(6, make_sample(6))
    assert [index for index, _ in ring.from_before(0)] == [3, 4, 5, 6]
    assert list(copied.from_before(0)) == [(number, make_sample(number)) for number in range(2, 6)]


def test_from_before_when_samples_are_missing_there_then_begins_with_the_last_one_before() -> None:
    ring = SampleRing(POOLS, 4)
    for index in (-1, 3, 7, 20):
        ring.append(index, make_sample(abs(index)))
    found = {first: [index for index, _ in ring.from_before(first)] for first in (-1, 3, 4, 7, 8, 21)}
    assert found == {-1: [-1, 3, 7, 20], 3: [-1, 3, 7, 20], 4: [3, 7, 20], 7: [3, 7, 20], 8: [7, 20], 21: [20]}


def test_ring_when_it_fills_then_it_takes_no_more_memory() -> None:
    """A sample that is kept takes hundreds of bytes. A full collection empties the interpreter's own free lists."""
    ring = SampleRing(POOLS, 2000)
    ring.append(0, make_sample(0))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, 2000):
            ring.append(number, make_sample(number))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000, f"{grown} bytes for 2,000 samples"
