"""EVL: eviction takes what nobody uses, locks go back to nought, and both cost the same in a large tree."""

import asyncio
import sys
from dataclasses import replace
from random import Random
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from engine.core.commands import AbortReason, CommitAck, FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CommitRequested, KvMoved, StepPlanned
from engine.core.findings import CheckLevel
from engine.core.ids import Rid, TurnId, pack_ids, unpack_ids
from engine.core.ownership import Move, PoolKind
from engine.core.plan import StepPlan
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, PAGE, FieldRig, Outcome, field_rig, pages_of, prompt
from tests.kit.busy_core import answer
from tests.kit.runtime_rig import oracle

if TYPE_CHECKING:
    from _typeshed import TraceFunction

LENGTH, CLIENT = FinishReason.LENGTH, AbortReason.CLIENT


def branching_prompt(number: int) -> list[int]:
    """Shares 2 pages with all, 4 with a half, 5 with an eighth of the others; two pages of its own behind."""
    trunk, limb, twig = prompt(1, 2 * PAGE), prompt(2 + number % 2, 2 * PAGE), prompt(5 + number % 8, PAGE)
    return trunk + limb + twig + prompt(20 + number, 2 * PAGE + number % 3)


@DEPTHS
async def test_prompts_when_they_branch_at_three_depths_then_only_unused_leaves_go(depth: int) -> None:
    """EVL-01 (NVIDIA/TensorRT-LLM#699): 40 prompts, 64 pages. The second books refuse to see a locked page go."""
    async with field_rig(replace(DEFAULT, running_max=6, in_flight_max=depth)) as rig:
        numbers = [Random(depth).sample(range(40), 40), Random(7).sample(range(40), 40)]
        for turn, order in enumerate(numbers):
            streams = [(number, await rig.submit(f"t{turn}-{number}", branching_prompt(number))) for number in order]
            for number, stream in streams:
                assert (await rig.collect(stream)).ids == oracle(branching_prompt(number), 8)
        assert rig.moves(Move.EVICT), "the pool was filled"
        await rig.require_sound([LENGTH] * 80)


async def soak(rig: FieldRig, rng: Random, number: int, longest: int) -> Outcome:
    """One request with a random prefix of others, of random length; one in ten is aborted."""
    ids = prompt(rng.randrange(4), rng.randrange(1, longest)) + prompt(number, rng.randrange(1, PAGE))
    stream = await rig.submit(f"t{number}", ids, max_tokens=rng.randrange(1, 9))
    if rng.random() < 0.1:
        await rig.abort(f"t{number}")
    result = await rig.collect(stream)
    assert result.ids == oracle(ids, len(result.ids))
    return result.end.outcome


@pytest.mark.parametrize(("num_requests", "longest"), [(200, 8 * PAGE), (2000, 20)], ids=["EVL-04", "EVL-10"])
async def test_requests_when_many_share_prefixes_and_some_are_aborted_then_every_lock_and_page_comes_back(
    num_requests: int, longest: int
) -> None:
    """EVL-04 (sgl-project/sglang#24153) and EVL-10 (sgl-project/sglang#25805), on full attention."""
    rng, at_once = Random(num_requests), asyncio.Semaphore(8)

    async def one(rig: FieldRig, number: int) -> Outcome:
        async with at_once:
            return await soak(rig, rng, number, longest)

    async with field_rig(replace(DEFAULT, pool_pages=pages_of(800), in_flight_max=2)) as rig:
        ends = await asyncio.gather(*(one(rig, number) for number in range(num_requests)))
        assert ends.count(CLIENT) > num_requests // 20
        assert rig.moves(Move.EVICT)
        assert max(fact.num_rows for fact in rig.facts() if isinstance(fact, StepPlanned)) == 8
        await rig.require_sound(ends)


@DEPTHS
@pytest.mark.parametrize("length", [2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1])
async def test_prompt_when_around_a_page_edge_then_one_length_is_inserted_matched_and_counted(
    depth: int, length: int
) -> None:
    """EVL-06 (sgl-project/sglang#34870): k*page-1, k*page, k*page+1; of a turn the last token has no KV."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        first = await rig.alone("first", prompt(1, length), 1)
        stored = sum(len(move.pages) for move in rig.moves(Move.DONATE))
        assert stored == length // PAGE
        second = await rig.alone("second", prompt(1, length) + first.ids, 4)
        assert second.end.usage.tokens_from_tree == stored * PAGE
        assert first.ids + second.ids == oracle(prompt(1, length), 5)
        assert (await rig.full_pool()).evictable == (length + 4) // PAGE
        await rig.require_sound([LENGTH, LENGTH])


async def test_prompt_when_refused_by_scheduling_again_and_again_then_what_it_matched_is_locked_by_nobody() -> None:
    """EVL-08 (sgl-project/sglang#16067), on pages: a match takes nothing until it is admitted."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(384), new_token_ratio=1.0)) as rig:
        await rig.alone("shared", prompt(1, 64), 1)
        rig.pause()
        holder = await rig.submit("holder", prompt(2, 250), max_tokens=60)
        matched = await rig.submit("matched", prompt(1, 64) + prompt(3, 40), max_tokens=4)
        await rig.let_steps(8)
        for _ in range(20):
            await rig.let_steps(1)
            books = await rig.full_books()
            assert books.protected * PAGE == 15 * PAGE, "the holder's own prompt, and nothing of the one that waits"
        assert [it.phase for it in (await rig.snapshot()).turns] == ["running", "waiting"]
        rig.go_on()
        assert (await rig.collect(holder)).ids == oracle(prompt(2, 250), 60)
        result = await rig.collect(matched)
        assert result.ids == oracle(prompt(1, 64) + prompt(3, 40), 4)
        await rig.require_sound([LENGTH] * 3)


def run_turn(core: Core, rid: int, ids: list[int]) -> list[StepPlan]:
    """A turn of two tokens, to its end. Returns its plans."""
    core.apply(Submit(Rid(rid), TurnId(f"t{rid}"), pack_ids(ids), max_tokens=2), 0.0)
    plans: list[StepPlan] = []
    while core.has_work:
        plan = core.next_plan(0.0)
        if plan is not None:
            plans.append(plan)
            core.advance(answer(plan), 0.0)
        settle(core)
    return plans


def settle(core: Core) -> int:
    """Acknowledges commits. Returns how many pages were evicted."""
    evicted = 0
    for numbered in core.take_events():
        if isinstance(numbered.event, CommitRequested):
            core.apply(CommitAck(numbered.event.rid), 0.0)
        if isinstance(numbered.event, KvMoved) and numbered.event.move is Move.EVICT:
            evicted += len(numbered.event.pages)
    return evicted


def test_prompt_when_12000_ids_in_chunks_of_8_then_served_and_found_again_and_evicted() -> None:
    """EVL-12 (sgl-project/sglang#154): no depth of recursion is reached, in the tree or anywhere."""
    config = replace(DEFAULT, pool_pages=pages_of(12_100), context_len=12_100, chunk_tokens=8, vocab_size=1000)
    core, ids = Core(config), prompt(1, 12_000)
    plans = run_turn(core, 1, ids)
    assert [token for plan in plans for row in plan.rows for token in unpack_ids(row.input_ids)][:12_000] == ids
    assert len(plans) == 12_000 // 8 + 1
    assert core.check(CheckLevel.FULL).is_clean
    assert len(run_turn(core, 2, [*ids, 5])) == 2, "all but the last token was found"
    run_turn(core, 3, prompt(2, 12_000))
    assert core.check(CheckLevel.FULL).is_clean
    full = next(books for books in core.snapshot().pools if books.pool is PoolKind.FULL)
    assert full.available + full.evictable == full.total


class OpcodeCount:
    """How many opcodes run inside it: work, without a clock."""

    def __init__(self) -> None:
        self.opcodes = 0

    def __enter__(self) -> "OpcodeCount":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _arg: object) -> "TraceFunction":
        frame.f_trace_opcodes = True
        self.opcodes += event == "opcode"
        return self._trace


def fill_tree(num_nodes: int) -> Core:
    """A full pool of leaves of one page each, all evictable."""
    config = CoreConfig(
        page_size=4, pool_pages=num_nodes + 1, num_rows=17, context_len=512, vocab_size=20_000, step_tokens=2048
    )
    core, rid = Core(config), 0
    while next(books for books in core.snapshot().pools).available > 2:
        rid += 1
        run_turn(core, rid, [rid, 1, 2, 3])
    return core


def work_of_decoding(core: Core) -> tuple[int, int]:
    """Opcodes of the dearest of 40 steps in which 8 streams decode and every page must be evicted; pages evicted."""
    for number in range(8):
        rid = Rid(100_000 + number)
        core.apply(Submit(rid, TurnId(f"d{number}"), pack_ids([19_000 + number, 1, 2, 3]), max_tokens=60), 0.0)
    dearest = evicted = 0
    for step in range(41):
        with OpcodeCount() as work:
            plan = core.next_plan(0.0)
            assert plan is not None
            core.advance(answer(plan), 0.0)
        evicted += settle(core)
        dearest = max(dearest, work.opcodes if step else 0)
    return dearest, evicted


def test_eviction_when_the_tree_has_10000_nodes_then_a_step_does_no_more_work_than_with_200() -> None:
    """EVL-13 (sgl-project/sglang#14339): 8 streams decode in a full pool; work is counted in opcodes."""
    small, evicted_small = work_of_decoding(fill_tree(200))
    large, evicted_large = work_of_decoding(fill_tree(10_000))
    assert evicted_small == evicted_large > 60
    assert large < 1.1 * small
