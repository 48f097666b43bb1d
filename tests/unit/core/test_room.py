"""Room: what is kept for tokens to come, who gives way, and that nobody gives way without end."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from engine.core.admission import LOWERED_A_STEP, RAISED_MIN, NewTokenRatio, pages_to_come
from engine.core.commands import CommitAck, FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.endings import Endings
from engine.core.events import CommitRequested, TurnAdmitted, TurnEnded, TurnRetracted
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.ownership import Move, PoolKind
from engine.core.plan import StepPlan, StepResult
from engine.core.priorities import last_attempt_rank
from engine.core.request import Phase, Request
from engine.core.room import Room
from tests.kit.core_parts import CoreParts, CoreRig, make_parts

# The ratio


def test_ratio_when_raised_then_it_doubles_from_a_least_value_up_to_one() -> None:
    ratio = NewTokenRatio(0.0)
    values = []
    for _ in range(5):
        ratio.raise_()
        values.append(ratio.value)
    assert values == [RAISED_MIN, 2 * RAISED_MIN, 4 * RAISED_MIN, 1.0, 1.0]


def test_ratio_when_lowered_then_it_comes_back_to_what_is_configured_and_no_further() -> None:
    ratio = NewTokenRatio(0.3)
    ratio.lower()
    assert ratio.value == 0.3
    ratio.raise_()
    ratio.lower()
    assert ratio.value == pytest.approx(0.6 - LOWERED_A_STEP)
    for _ in range(1000):
        ratio.lower()
    assert ratio.value == 0.3


def test_ratio_when_reset_then_what_was_learned_is_gone() -> None:
    ratio = NewTokenRatio(0.1)
    for _ in range(4):
        ratio.raise_()
    ratio.reset()
    assert ratio.value == 0.1


@pytest.mark.parametrize(
    ("ratio", "output_len", "is_last_attempt", "pages"),
    [
        (0.0, 0, False, 2),
        (0.5, 0, False, 3),
        (1.0, 0, False, 4),
        (0.0, 0, True, 4),
        (0.0, 7, True, 4),
        (0.5, 6, False, 4),
    ],
)
def test_pages_to_come_when_asked_then_a_share_of_what_may_be_generated_counts_and_all_on_the_last_attempt(
    ratio: float, output_len: int, is_last_attempt: bool, pages: int
) -> None:
    """A prompt of 7 tokens and 8 to generate on pages of 4."""
    request = make_parts().request(1, list(range(7)))
    request.append(tuple(range(output_len)))
    request.is_last_attempt = is_last_attempt
    assert pages_to_come(request, 4, ratio, 0) == pages
    assert pages_to_come(request, 4, ratio, 1) == pages - 1
    assert pages_to_come(request, 4, ratio, 9) == 0


# The room itself

CONFIG = CoreConfig(page_size=4, pool_pages=17, num_rows=5, context_len=64, vocab_size=1000, new_token_ratio=0.0)


def make_room(parts: CoreParts, config: CoreConfig = CONFIG) -> Room:
    endings = Endings(config, parts.pools, parts.queues, parts.slots, parts.sessions, parts.log)
    return Room(config, parts.pools, parts.table, parts.slots, parts.queues, endings)


def run_request(parts: CoreParts, room: Room, rid: int, num_pages: int) -> Request:
    """One that runs, with so many pages full of committed tokens."""
    request = parts.request(rid, [rid] * (4 * num_pages))
    parts.slots.acquire(request, parts.slots.probe(request))
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    room.equip(request)
    assert room.grow(request, num_pages)
    request.kv.kv_committed_len = request.kv.kv_allocated_len = 4 * num_pages
    return request


def retracted(parts: CoreParts) -> list[Rid]:
    return [event.rid for event in parts.events(TurnRetracted) if isinstance(event, TurnRetracted)]


def test_grow_when_pages_are_there_then_it_takes_what_is_missing_and_writes_the_table() -> None:
    parts = make_parts()
    room = make_room(parts)
    request = run_request(parts, room, 1, 2)
    assert [room.missing(request, length) for length in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert room.grow(request, 2)
    assert len(request.kv.pages) == 4
    assert request.kv.req_pool_idx is not None
    assert list(parts.table.row(request.kv.req_pool_idx)[:4]) == request.kv.pages


def test_grow_when_pages_are_short_then_the_newest_gives_way_and_the_ratio_is_raised() -> None:
    parts = make_parts()
    room = make_room(parts)
    oldest, *_ = (run_request(parts, room, rid, 5) for rid in (1, 2, 3))
    assert room.grow(oldest, 2)
    assert retracted(parts) == [3]
    assert room.ratio.value == RAISED_MIN


def test_grow_when_only_older_ones_run_then_the_turn_waits_and_nobody_gives_way() -> None:
    parts = make_parts()
    room = make_room(parts)
    *_, newest = (run_request(parts, room, rid, 8) for rid in (1, 2))
    assert not room.grow(newest, 1)
    assert retracted(parts) == []
    assert room.ratio.value == 0.0


def test_grow_when_the_newest_is_on_its_last_attempt_then_the_next_newest_gives_way() -> None:
    parts = make_parts()
    room = make_room(parts)
    oldest, _, newest = (run_request(parts, room, rid, 5) for rid in (1, 2, 3))
    newest.is_last_attempt = True
    assert room.grow(oldest, 2)
    assert retracted(parts) == [2]
    assert not room.grow(oldest, 10)
    assert retracted(parts) == [], "nobody is left who may be retracted for it"


def test_grow_when_the_turn_itself_is_on_its_last_attempt_then_even_an_older_one_gives_way() -> None:
    parts = make_parts()
    room = make_room(parts)
    _, newest = (run_request(parts, room, rid, 8) for rid in (1, 2))
    newest.is_last_attempt, newest.rank = True, last_attempt_rank(newest.rank)
    parts.queues.running.reverse()
    assert room.grow(newest, 1)
    assert retracted(parts) == [1]


@pytest.mark.parametrize("retractions_max", [1, 2, 3])
def test_retraction_when_it_was_the_last_one_allowed_then_the_turn_is_on_its_last_attempt(retractions_max: int) -> None:
    parts = make_parts()
    room = make_room(parts, replace(CONFIG, retractions_max=retractions_max))
    oldest = run_request(parts, room, 1, 8)
    victim = run_request(parts, room, 2, 8)
    last_attempts = []
    for _ in range(retractions_max):
        last_attempts.append(victim.is_last_attempt)
        assert room.grow(oldest, 1)
        assert parts.queues.running == [oldest]
        parts.pools.free_up(Move.RELEASE, PoolKind.FULL, oldest.kv.pages[8:], oldest.owner)
        del oldest.kv.pages[8:]
        parts.queues.run(victim)
        victim.go(Phase.RUNNING)
        room.equip(victim)
        assert room.grow(victim, 8)
    assert last_attempts == [False] * retractions_max
    assert victim.is_last_attempt
    assert not room.grow(oldest, 1), "it is never retracted again"


@pytest.mark.parametrize(("query_len", "granted", "num_pages"), [(4, 4, 3), (8, 8, 4), (12, 0, 2)])
def test_grow_spare_when_asked_then_nobody_is_retracted_for_it(query_len: int, granted: int, num_pages: int) -> None:
    parts = make_parts()
    room = make_room(parts)
    oldest = run_request(parts, room, 1, 2)
    run_request(parts, room, 2, 12)
    assert room.grow_spare(oldest, query_len) == granted
    assert len(oldest.kv.pages) == num_pages
    assert retracted(parts) == []


def test_shrink_when_guesses_were_wrong_then_whole_pages_behind_the_committed_tokens_are_free() -> None:
    parts = make_parts()
    room = make_room(parts)
    request = run_request(parts, room, 1, 2)
    assert room.grow(request, 3)
    request.kv.kv_allocated_len, request.kv.kv_committed_len = 17, 9
    room.shrink(request)
    assert (len(request.kv.pages), request.kv.kv_allocated_len) == (3, 9)
    assert parts.pools.free(PoolKind.FULL) == 13


def test_fits_when_a_running_turn_is_on_its_last_attempt_then_all_that_it_needs_is_kept_for_it() -> None:
    parts = make_parts()
    room = make_room(parts)
    running = run_request(parts, room, 1, 12)  # and up to 8 tokens more
    small = parts.request(2, [2] * 8)  # two pages, and one for a token to come
    assert room.fits(small, parts.slots.probe(small))
    running.is_last_attempt = True
    assert not room.fits(small, parts.slots.probe(small))


def test_fits_when_all_rows_are_taken_then_it_does_not() -> None:
    parts = make_parts(num_rows=2)
    room = make_room(parts)
    first = parts.request(1, [1])
    assert room.fits(first, parts.slots.probe(first))
    run_request(parts, room, 2, 1)
    assert not room.fits(first, parts.slots.probe(first))


# Through the core

CROWD = CoreConfig(page_size=4, pool_pages=33, num_rows=9, context_len=1024, vocab_size=100, new_token_ratio=0.0)


def submit(core: Core, rid: int, prompt_len: int, max_tokens: int) -> None:
    ids = pack_ids([rid % 90] * prompt_len)
    core.apply(Submit(Rid(rid), TurnId(f"t{rid}"), ids, max_tokens=max_tokens, ignore_eos=True), 0.0)


def step(core: Core) -> StepPlan | None:
    """One step in which every row that samples yields 7; what is finished is acknowledged."""
    plan = core.next_plan(0.0)
    if plan is not None:
        core.advance(StepResult(plan.step, tuple((7,) * row.num_samples for row in plan.rows)), 0.0)
    return plan


def take(core: Core, kind: type[TurnAdmitted | TurnRetracted]) -> list[Rid]:
    """Of whom such an event was told since the last call. Acknowledges commits."""
    told = [numbered.event for numbered in core.take_events()]
    for event in told:
        if isinstance(event, CommitRequested):
            core.apply(CommitAck(event.rid), 0.0)
    return [event.rid for event in told if isinstance(event, kind)]


class Load:
    """Small turns without a pause, and now and then a crowd of large ones."""

    def __init__(self) -> None:
        self.core = Core(replace(CROWD, pool_pages=121, num_rows=17))
        self._next_rid = 0
        self._small = self._submit(1, 10)
        self.step()

    def _submit(self, prompt_len: int, max_tokens: int) -> Rid:
        self._next_rid += 1
        submit(self.core, self._next_rid, prompt_len, max_tokens)
        return Rid(self._next_rid)

    def step(self) -> list[Rid]:
        """One step, with a small turn that goes on behind it. Returns who was admitted."""
        live = {turn.rid: turn.output_len for turn in self.core.snapshot().turns}
        if live.get(self._small, 10) > 7:
            self._small = self._submit(1, 10)
        step(self.core)
        return take(self.core, TurnAdmitted)

    def admit_crowd(self) -> int:
        """How many of seven turns come in at once. Waits for the end of all seven."""
        crowd = {self._submit(16, 80) for _ in range(7)}
        num_admitted = len(crowd.intersection(self.step()))
        while crowd.intersection(turn.rid for turn in self.core.snapshot().turns):
            self.step()
        return num_admitted

    def fall_idle(self) -> None:
        while self.core.has_work:
            step(self.core)
            take(self.core, TurnAdmitted)
        assert self.core.next_plan(0.0) is None


def test_ratio_when_the_load_was_too_high_then_fewer_come_in_at_once_until_the_engine_is_idle() -> None:
    load = Load()
    before, after = load.admit_crowd(), load.admit_crowd()
    assert before == 7
    assert after < before
    load.fall_idle()
    assert load.admit_crowd() == before


def test_ratio_when_many_steps_go_by_without_a_retraction_then_as_many_come_in_as_at_first() -> None:
    load = Load()
    assert load.admit_crowd() == 7
    for _ in range(700):
        load.step()
    assert load.admit_crowd() == 7


@pytest.mark.parametrize("in_flight_max", [1, 2])
@pytest.mark.parametrize(("retractions_max", "seed"), [(1, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["plain", "streaming"])
def test_crowd_when_the_pool_is_tiny_then_nobody_is_retracted_more_often_than_allowed_and_all_finish(
    kind: str, retractions_max: int, seed: int, in_flight_max: int
) -> None:
    rng = random.Random(seed)
    config = replace(CROWD, page_size=2, pool_pages=25, retractions_max=retractions_max, in_flight_max=in_flight_max)
    rig = CoreRig(config)
    asked: dict[Rid, int] = {}
    for number in range(8):
        session = f"s{number}" if kind != "plain" else None
        if session is not None:
            rig.open(session, streaming=kind == "streaming")
        command = rig.command(f"t{number}", [number] * rng.randint(1, 10), session)
        max_tokens = rng.randint(4, 38)
        asked[rig.submit(replace(command, max_tokens=max_tokens, priority=rng.choice([0, 0, 0, 1])))] = max_tokens
    rig.run()
    ends = {event.rid: event for event in rig.of(TurnEnded)}
    assert {event.outcome for event in ends.values()} == {FinishReason.LENGTH}
    assert {rid: event.usage.output_len for rid, event in ends.items()} == asked
    counts = Counter(event.rid for event in rig.of(TurnRetracted))
    assert {rid: event.usage.retractions for rid, event in ends.items()} == {rid: counts[rid] for rid in asked}
    assert 0 < max(counts.values()) <= retractions_max
    if in_flight_max == 1 and retractions_max < 3:
        assert max(counts.values()) == retractions_max, "this crowd was chosen because it comes to the limit"
