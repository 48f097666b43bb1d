"""Prompt lookup, and what the scheduler makes of right and wrong guesses."""

import random
from dataclasses import replace

import pytest

from engine.core.commands import FinishReason
from engine.core.config import CoreConfig
from engine.core.drafts import NGRAM_MAX, find_drafts
from engine.core.events import CommitRequested, TokensSampled
from engine.core.ids import Rid, pack_ids, unpack_ids
from engine.core.ownership import PoolKind
from tests.kit.core_parts import CoreRig, ScriptedModel

# The lookup


def drafts(ids: list[int], count: int = 4) -> list[int]:
    return list(unpack_ids(find_drafts(bytearray(pack_ids(ids)), count)))


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([], []),
        ([5], []),
        ([1, 2, 3], []),
        ([5, 5], [5, 5, 5, 5]),
        ([1, 2, 1], [2, 1, 2, 1]),
        ([1, 2, 3, 9, 8, 7, 6, 1, 2, 3], [9, 8, 7, 6]),
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),
        ([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], [8, 1, 2, 3]),
        ([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], [7, 9, 2, 3]),
        ([0, 2, 3, 7, 9, 9, 3, 8, 1, 2, 3], [7, 9, 9, 3]),
        ([3, 7, 7, 7, 7, 1, 2, 3], [7, 7, 7, 7]),
        ([1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
    ],
    ids=[
        "nothing",
        "one id",
        "all new",
        "a pair",
        "runs out and repeats",
        "three agree",
        "up to the end",
        "the newest of two",
        "longer before newer",
        "two before one",
        "one",
        "periodic",
    ],
)
def test_lookup_when_the_last_ids_occurred_before_then_it_guesses_what_followed(
    ids: list[int], found: list[int]
) -> None:
    assert drafts(ids) == found


@pytest.mark.parametrize("count", range(1, 9))
def test_lookup_when_so_many_are_asked_for_then_so_many_are_given_and_periodic_text_goes_on(count: int) -> None:
    assert drafts([1, 2, 3] * 4, count) == ([1, 2, 3] * 4)[:count]


TRAPS = [0, 1, 256, 1 << 16, 1 << 24, 257, (1 << 24) + 1, 0x01010101, 0x00010001]
"""Ids whose bytes look like other ids from one, two or three bytes further on."""


def naive_drafts(ids: list[int], count: int) -> list[int]:
    """The same by lists, one id at a time."""
    for ngram in range(min(NGRAM_MAX, len(ids) - 1), 0, -1):
        for start in range(len(ids) - ngram - 1, -1, -1):
            if ids[start : start + ngram] == ids[-ngram:]:
                following = ids[start + ngram :]
                return (following * count)[:count]
    return []


@pytest.mark.parametrize(
    "ids",
    [
        [256, 256, 1],
        [1 << 24, 1],
        [1 << 16, 0, 1],
        [0, 256, 0, 1],
        [0x01010101, 0x01010101, 0x010101],
        [1, 1 << 24, 7, 0, 256],
    ],
)
def test_lookup_when_bytes_agree_across_the_edge_of_an_id_then_it_finds_nothing(ids: list[int]) -> None:
    assert drafts(ids) == []


@pytest.mark.parametrize("seed", range(20))
def test_lookup_when_ids_look_alike_byte_by_byte_then_it_agrees_with_one_that_compares_ids(seed: int) -> None:
    rng = random.Random(seed)
    num_found = 0
    for _ in range(150):
        ids = [rng.choice(TRAPS) for _ in range(rng.randrange(14))]
        found = drafts(ids, 3)
        num_found += bool(found)
        assert found == naive_drafts(ids, 3), ids
    assert 0 < num_found < 150


@pytest.mark.parametrize(("num_traps", "found"), [(0, [5, 9]), (5, [5, 1]), (100, [])])
def test_lookup_when_bytes_agree_between_ids_over_and_over_then_it_gives_up(num_traps: int, found: list[int]) -> None:
    # The four zero bytes of id 0 are also between each 1 and the id behind it, three times.
    assert drafts([0, 5, *[1, 1 << 24] * num_traps, 9, 0], 2) == found


# In the scheduler

CONFIG = CoreConfig(page_size=4, pool_pages=33, num_rows=5, context_len=64, vocab_size=100, in_flight_max=2)
EOS = 99


def run_turn(rig: CoreRig, prompt: list[int], max_tokens: int, draft_tokens: int) -> Rid:
    command = replace(rig.command("t", prompt), max_tokens=max_tokens, draft_tokens=draft_tokens, ignore_eos=False)
    rid = rig.submit(command)
    rig.run()
    return rid


def told(rig: CoreRig) -> list[tuple[int, tuple[int, ...], int]]:
    return [(event.output_start, event.token_ids, event.drafted) for event in rig.of(TokensSampled)]


def test_speculation_when_all_guesses_are_right_then_a_step_yields_one_more_than_it_guessed() -> None:
    rig = CoreRig(CONFIG, ScriptedModel(100, script=(1, 2, 3, 4)))
    run_turn(rig, [1, 2, 3, 4, 1, 2], 9, 3)
    assert told(rig) == [(0, (3,), 0), (1, (4, 1, 2, 3), 3), (5, (4, 1, 2, 3), 3)]


def test_speculation_when_guesses_are_wrong_then_the_one_id_that_is_right_counts_and_the_page_goes_back() -> None:
    # Behind 5, 6 came 7, 8, 9; the model says 7, then something else each time.
    script = (5, 6, 7, 8, 9, 5, 6, 7, 20, 21, 22, 23)
    rig = CoreRig(CONFIG, ScriptedModel(100, script=script))
    rid = rig.submit(replace(rig.command("t", script[:6]), max_tokens=4, draft_tokens=4))
    rig.step()
    assert rig.output(rid) == [6]
    while rig.core.has_work:
        rig.step()
        for turn in rig.core.snapshot().turns:
            assert turn.kv_committed_len == turn.context_len + turn.output_len - 1
            assert turn.pages == -(-turn.kv_committed_len // 4) - turn.context_len // 4, "the first page is the tree's"
    assert told(rig)[1:] == [(1, (7, 20), 2), (3, (21,), 0)]


def test_speculation_when_wrong_guesses_filled_a_page_then_that_page_is_free_at_once() -> None:
    script = (5, 6, 7, 8, 5, 6, 30, 31)
    rig = CoreRig(replace(CONFIG, page_size=1, pool_pages=20), ScriptedModel(100, script=script))
    rig.submit(replace(rig.command("t", script[:5]), max_tokens=4, draft_tokens=2))
    rig.step()
    before = rig.core.snapshot().pools[0].available
    plan = rig.plan()
    assert plan is not None
    assert (plan.rows[0].query_len, plan.rows[0].num_samples) == (3, 3)
    assert rig.core.snapshot().pools[0].available == before - 3
    rig.answer()
    assert told(rig)[-1] == (1, (30,), 2)
    assert rig.core.snapshot().pools[0].available == before - 1


@pytest.mark.parametrize(("ignore_eos", "output"), [(False, [5, EOS]), (True, [5, EOS, 7, 8, 5, EOS])])
def test_speculation_when_a_right_guess_is_the_end_then_nothing_behind_it_counts(
    ignore_eos: bool, output: list[int]
) -> None:
    script = (5, EOS, 7, 8)
    rig = CoreRig(replace(CONFIG, eos_ids=(EOS,)), ScriptedModel(100, script=script))
    command = rig.command("t", script * 2)
    rid = rig.submit(replace(command, max_tokens=6, draft_tokens=4, ignore_eos=ignore_eos))
    rig.run()
    assert rig.output(rid) == output
    assert rig.ending(rid).outcome is (FinishReason.LENGTH if ignore_eos else FinishReason.STOP)
    assert max(event.drafted for event in rig.of(TokensSampled)) > 1
    assert [event.output_len for event in rig.of(CommitRequested)] == [len(output)]


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_speculation_when_the_limit_is_near_then_it_never_guesses_past_it(max_tokens: int) -> None:
    rig = CoreRig(CONFIG, ScriptedModel(100, script=(1, 2)))
    rid = run_turn(rig, [1, 2, 1, 2], max_tokens, 4)
    assert rig.output(rid) == ([1, 2] * 4)[:max_tokens]
    assert rig.ending(rid).outcome is FinishReason.LENGTH
    for plan in rig.plans:
        (row,) = plan.rows
        assert row.start_len + row.query_len <= 4 + max_tokens - 1, "the KV of the last id is nobody's need"


def test_speculation_when_a_turn_guesses_then_it_has_one_plan_in_flight_while_others_overlap() -> None:
    rig = CoreRig(CONFIG, ScriptedModel(100, script=(1, 2)))
    guessing = rig.submit(replace(rig.command("g", [1, 2, 1]), max_tokens=8, draft_tokens=2))
    plain = rig.submit(replace(rig.command("p", [2, 1, 2]), max_tokens=8))
    in_flight: dict[Rid, int] = {guessing: 0, plain: 0}
    while rig.core.has_work:
        if rig.plan() is None:
            rig.answer()
        for turn in rig.core.snapshot().turns:
            in_flight[turn.rid] = max(in_flight[turn.rid], turn.in_flight)
    assert in_flight == {guessing: 1, plain: 2}
    assert not any(row.uses_sampled for plan in rig.plans for row in plan.rows if row.rid == guessing)


def test_speculation_when_the_budget_of_a_step_is_small_then_guesses_take_only_what_others_leave() -> None:
    config = replace(CONFIG, step_tokens=4, running_max=2, in_flight_max=1)
    rig = CoreRig(config, ScriptedModel(100, script=(1, 2)))
    rids = [
        rig.submit(replace(rig.command(turn, [1, 2, 1]), max_tokens=9, draft_tokens=8)) for turn in ("first", "second")
    ]
    rig.run()
    assert all(plan.num_tokens <= 4 for plan in rig.plans)
    both = [plan for plan in rig.plans if len(plan.rows) == 2]
    assert both
    assert any(row.num_samples > 1 for plan in both for row in plan.rows)
    assert [len(rig.output(rid)) for rid in rids] == [9, 9]


def test_speculation_when_chunks_are_small_then_drafts_do_not_count() -> None:
    rig = CoreRig(replace(CONFIG, chunk_tokens=1), ScriptedModel(100, script=(1, 2)))
    run_turn(rig, [1, 2, 1, 2], 9, 8)
    rows = [row for plan in rig.plans for row in plan.rows]
    assert {row.query_len for row in rows if row.num_samples <= 1} == {1}
    assert max(row.query_len for row in rows) == 8


def test_speculation_when_pages_are_short_then_it_guesses_less_and_nobody_is_retracted_for_it() -> None:
    config = replace(CONFIG, page_size=1, pool_pages=22, in_flight_max=1, new_token_ratio=0.0, prefix_cache=False)
    rig = CoreRig(config, ScriptedModel(100, script=(1, 2)))
    other = rig.submit(replace(rig.command("other", range(10, 18)), max_tokens=3))
    guessing = rig.submit(replace(rig.command("guesses", [1, 2, 1, 2]), max_tokens=12, draft_tokens=4))
    drafted: list[tuple[int, int]] = []
    while rig.core.has_work:
        spare = rig.core.snapshot().pools[0].available
        plan = rig.plan()
        assert plan is not None
        drafted += [(len(plan.rows), row.num_samples - 1) for row in plan.rows if row.rid == guessing]
        assert sum(row.num_samples - 1 for row in plan.rows) <= spare
        rig.answer()
    # The third time the other's pages leave no room for four guesses; when it is gone they do.
    assert drafted == [(2, 0), (2, 4), (2, 0), (1, 4)]
    assert [rig.ending(rid).usage.retractions for rid in (other, guessing)] == [0, 0]
    assert rig.output(guessing) == [1, 2] * 6


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
@pytest.mark.parametrize("draft_tokens", [1, 3, 8])
def test_speculation_when_on_then_every_turn_has_the_ids_that_it_has_without(
    draft_tokens: int, streaming: bool
) -> None:
    outputs: dict[int, list[list[int]]] = {}
    drafted: list[tuple[int, int]] = []
    for guesses in (0, draft_tokens):
        # A vocabulary of three repeats itself often, and is wrong often.
        rig = CoreRig(replace(CONFIG, vocab_size=3, pool_pages=17, new_token_ratio=0.0))
        rids = []
        for session in ("s", "t"):
            rig.open(session, streaming=streaming)
        for number in range(3):
            for session in ("s", "t"):
                command = replace(rig.command(f"t{number}", [number % 3, 1, 2], session), draft_tokens=guesses)
                rids.append(rig.submit(replace(command, max_tokens=15 - number)))
            rig.run()
        outputs[guesses] = [rig.output(rid) for rid in rids]
        drafted = [(event.drafted, len(event.token_ids) - 1) for event in rig.of(TokensSampled)]
    assert outputs[0] == outputs[draft_tokens]
    assert sum(right for _, right in drafted) > 0
    assert sum(guessed - right for guessed, right in drafted) > 0


def test_speculation_when_the_forward_fails_then_nothing_of_the_guesses_stays() -> None:
    rig = CoreRig(CONFIG, ScriptedModel(100, script=(1, 2)))
    rig.open("s", streaming=True)
    rig.submit(replace(rig.command("a", [1, 2, 1], "s")))
    rig.run()
    held = rig.slot("s")
    rid = rig.submit(replace(rig.command("b", [2, 1], "s"), max_tokens=9, draft_tokens=4))
    rig.step()
    plan = rig.plan()
    assert plan is not None
    assert plan.rows[0].num_samples > 1
    rig.answer(failure="device lost")
    assert rig.ending(rid).detail == "device lost"
    assert rig.slot("s") == held
    assert rig.core.snapshot().pools[0].uncached == 0
    assert len(rig.core.owners(PoolKind.FULL)) == CONFIG.pool_pages


def test_speculation_when_another_needs_pages_that_guesses_hold_then_it_waits_for_them_and_nobody_is_retracted() -> (
    None
):
    config = replace(CONFIG, page_size=1, pool_pages=12, in_flight_max=2, new_token_ratio=0.0, prefix_cache=False)
    rig = CoreRig(config, ScriptedModel(100, script=(1, 2)))
    other = rig.submit(replace(rig.command("other", [50, 51]), max_tokens=6))
    guessing = rig.submit(replace(rig.command("guesses", [1, 2, 1, 2]), max_tokens=4, draft_tokens=2))
    rig.run()
    assert [rig.ending(rid).usage.retractions for rid in (other, guessing)] == [0, 0]
    assert any(event.drafted for event in rig.of(TokensSampled))
