"""Flush: what the cache holds and nobody uses goes free in every pool; what somebody uses stays."""

from dataclasses import replace

import pytest

from engine.core.commands import Flush, Flushed, Open
from engine.core.config import CoreConfig
from engine.core.events import CacheFlushed, KvMoved
from engine.core.findings import CheckLevel
from engine.core.flushing import flush_tree
from engine.core.ids import SessionId
from engine.core.ownership import CACHE, FREE, Move, OwnerKind, PoolKind
from tests.kit.core_parts import CoreRig
from tests.kit.hybrid_tree import HybridTree

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
CONFIG = CoreConfig(page_size=4, pool_pages=33, num_rows=5, context_len=64, vocab_size=1000)
HYBRID = replace(CONFIG, window=6, swa_pages=33, state_slots=21, state_interval=4)


def ids(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def books(rig: CoreRig, pool: PoolKind = FULL) -> tuple[int, int, int]:
    """Free, evictable, protected."""
    terms = next(each for each in rig.core.snapshot().pools if each.pool is pool)
    assert terms.is_balanced
    return terms.available, terms.evictable, terms.protected


def test_flush_when_nothing_is_cached_then_nothing_is_freed_and_that_is_told() -> None:
    rig = CoreRig(CONFIG)
    assert rig.apply(Flush()) == Flushed(0)
    assert rig.take() == [CacheFlushed(0)]


def test_flush_when_prefixes_are_cached_then_evicted_first_and_then_told_to_be_flushed() -> None:
    rig = CoreRig(CONFIG)
    for number in range(3):
        rig.submit(rig.command(f"t{number}", ids(100 * number, 13)))
    rig.run()
    before = books(rig)
    assert before[1] > 0
    rig.take()
    flushed = rig.apply(Flush())
    assert flushed == Flushed(pages=before[1])
    *evictions, last = rig.take()
    assert last == CacheFlushed(before[1])
    assert {
        (type(event), event.move, event.source, event.target) for event in evictions if isinstance(event, KvMoved)
    } == {(KvMoved, Move.EVICT, CACHE, FREE)}
    assert sum(len(event.pages) for event in evictions if isinstance(event, KvMoved)) == before[1]
    assert books(rig) == (CONFIG.pool_pages - 1, 0, 0)


def test_flush_when_a_slot_uses_a_prefix_then_it_stays_and_the_session_goes_on_with_it() -> None:
    rig = CoreRig(CONFIG)
    rig.open("s", streaming=True)
    rig.submit(rig.command("a", ids(0, 14), "s"))
    rig.submit(rig.command("other", ids(500, 14)))
    rig.run()
    _, evictable, protected = books(rig)
    assert min(evictable, protected) > 0
    held = rig.slot("s")
    assert rig.apply(Flush()) == Flushed(pages=evictable)
    assert rig.slot("s") == held
    assert books(rig)[1:] == (0, protected)
    rig.take()
    rid = rig.submit(rig.command("b", [7], "s"))
    rig.run()
    usage = rig.ending(rid).usage
    assert usage.tokens_from_slot == held.kv_committed_len, "none of it is computed again"


def test_flush_when_a_turn_runs_then_what_it_uses_stays_and_its_answer_is_the_same() -> None:
    rig, quiet = CoreRig(CONFIG), CoreRig(CONFIG)
    outputs = []
    for each in (rig, quiet):
        each.submit(each.command("first", ids(0, 16)))
        each.run()
        rid = each.submit(replace(each.command("second", ids(0, 20)), max_tokens=6))
        each.step(2)
        if each is rig:
            _, _, protected = books(rig)
            assert protected > 0
            each.apply(Flush())
            assert books(rig)[1:] == (0, protected)
        each.run()
        outputs.append(each.output(rid))
    assert outputs[0] == outputs[1]


def test_flush_when_there_are_windows_and_states_then_all_of_every_pool_goes() -> None:
    rig = CoreRig(HYBRID)
    for number in range(3):
        rig.submit(rig.command(f"t{number}", ids(100 * number, 21)))
    rig.run()
    cached = {pool: books(rig, pool)[1] for pool in (FULL, SWA, MAMBA)}
    assert all(cached.values()), "each pool has something cached"
    flushed = rig.apply(Flush())
    assert flushed == Flushed(cached[FULL], cached[SWA], cached[MAMBA])
    assert rig.take()[-1] == CacheFlushed(sum(cached.values()))
    assert [books(rig, pool)[1] for pool in (FULL, SWA, MAMBA)] == [0, 0, 0]
    assert rig.core.check(CheckLevel.FULL).is_clean


@pytest.mark.parametrize("has_states", [False, True])
def test_flush_when_a_lock_is_held_then_exactly_its_units_stay(has_states: bool) -> None:
    hybrid = HybridTree(has_states=has_states)
    hybrid.insert(range(20))
    hybrid.insert([*range(8), *range(100, 108)])
    lock = hybrid.lock(range(20))
    flush_tree(hybrid.tree, hybrid.pools.ledger)
    assert hybrid.cached() == hybrid.protected()
    assert hybrid.cached()[0] == lock.num_pages == 5
    hybrid.tree.unlock(lock, 3)
    flush_tree(hybrid.tree, hybrid.pools.ledger)
    assert set(hybrid.cached()) == {0}
    assert hybrid.shape() == []


def test_flush_when_a_session_is_open_and_without_kv_then_it_is_untouched() -> None:
    rig = CoreRig(CONFIG)
    rig.apply(Open(SessionId("s"), streaming=True))
    before = rig.slot("s")
    rig.apply(Flush())
    assert rig.slot("s") == before
    assert all(owner.kind is OwnerKind.FREE for owner in rig.core.owners(FULL))


def test_flush_when_it_may_evict_so_often_then_bit_by_bit_and_told_with_the_last_one() -> None:
    rig = CoreRig(CONFIG)
    for number in range(3):
        rig.submit(rig.command(f"t{number}", ids(100 * number, 13)))
    rig.run()
    cached = books(rig)[1]
    rig.take()
    parts: list[Flushed] = []
    while not parts or not parts[-1].is_complete:
        part = rig.apply(Flush(evictions_max=1))
        assert isinstance(part, Flushed)
        parts.append(part)
    assert len(parts) == 3
    assert sum(part.pages for part in parts) == cached
    told = [event for event in rig.take() if isinstance(event, CacheFlushed)]
    assert told == [CacheFlushed(parts[-1].pages)]
    assert parts[0].plus(parts[1]) == Flushed(parts[0].pages + parts[1].pages, is_complete=False)
