"""The eleven scenarios of the design of sessions that break other servers, each on the engine with its runtime."""

import asyncio
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason, TurnMode
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import SessionClosed, SlotState, TurnRetracted, TurnsForgotten
from engine.core.ids import SessionId
from engine.core.ownership import OwnerKind, PoolKind
from engine.runtime.handle import Delta, TurnOptions
from engine.runtime.streams import LiveStream
from tests.integration.field_reports.rig import (
    DEFAULT,
    DEPTHS,
    PAGE,
    FieldRig,
    ManualClock,
    field_rig,
    pages_of,
    prompt,
)
from tests.kit.runtime_rig import ids_of, oracle, read_all, wait_until

LENGTH, CLIENT = FinishReason.LENGTH, AbortReason.CLIENT


async def gone(rig: FieldRig, session: str) -> None:
    async def is_gone() -> bool:
        return session not in await rig.slots()

    await wait_until(is_gone)


@DEPTHS
async def test_turn_when_two_more_are_refused_then_its_lease_its_pages_and_its_text_are_its_own(depth: int) -> None:
    """Scenario 1: the refusal of C must not clear B's lease, or D would get in."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s")
        await rig.run("a", prompt(1, 20), "s")
        history = await rig.history("s")
        stream = await rig.submit("b", prompt(2, 20), session="s", max_tokens=20)
        await rig.read_some(stream, 3)
        rig.pause()
        await rig.wait_in_flight(depth)
        for _ in ("c", "d"):
            refusal = await rig.refused(prompt(3, 5), session="s")
            assert (refusal.reason, refusal.value) == (RefusalReason.SESSION_BUSY, "b")
        assert (await rig.state_of("s")).slot is SlotState.LENT
        rig.go_on()
        await rig.collect(stream)
        expected = oracle(history + prompt(2, 20), 20)
        assert (await rig.history("s")) == history + prompt(2, 20) + expected
        await rig.require_sound([LENGTH, LENGTH])


async def test_turn_when_another_is_refused_meanwhile_then_its_text_is_whole() -> None:
    """Scenario 1: of B's text nothing is missing, and nothing is told twice."""
    async with field_rig() as rig:
        await rig.open("s")
        stream = await rig.submit("b", prompt(2, 20), session="s", max_tokens=40)
        reading = asyncio.create_task(read_all(stream))
        with pytest.raises(Refusal):
            await rig.submit("c", prompt(3, 5), session="s")
        assert not reading.done()
        events = await reading
        assert ids_of(events) == oracle(prompt(2, 20), 40)
        text = "".join(event.text for event in events if isinstance(event, Delta))
        assert text == bytes(ids_of(events)).decode(errors="replace")
        await rig.require_sound([LENGTH])


@DEPTHS
async def test_first_turn_when_another_is_refused_during_it_then_its_slot_is_intact_afterwards(depth: int) -> None:
    """Scenario 2: A runs, B is refused, A finishes; B's end must not touch A's slot."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s")
        rig.pause()
        stream = await rig.submit("a", prompt(1, 20), session="s")
        await rig.wait_in_flight(depth)
        assert (await rig.refused([5], session="s")).reason is RefusalReason.SESSION_BUSY
        rig.go_on()
        first = await rig.collect(stream)
        assert (await rig.state_of("s")).slot is SlotState.HELD
        second = await rig.run("b", prompt(2, 3), "s")
        assert second.ids == oracle(prompt(1, 20) + first.ids + prompt(2, 3), 8)
        assert second.end.usage.tokens_computed == 3 + 1
        await rig.require_sound([LENGTH, LENGTH])


async def drop_queued(rig: FieldRig, by: str) -> list[AbortReason]:
    """A turn of session "s" that waits is dropped, or not even let in. Returns how those that waited ended."""
    if by == "queue limit":
        await rig.open("other")
        waiting = await rig.submit("w", prompt(5, 5), session="other")
        assert (await rig.refused(prompt(2, 5), session="s")).reason is RefusalReason.QUEUE_FULL
        await rig.abort("w", "other")
        assert (await rig.collect(waiting)).end.outcome is CLIENT
        return [CLIENT]
    deadline_s = 0.01 if by == "deadline" else None
    stream = await rig.submit("dropped", prompt(2, 5), session="s", deadline_s=deadline_s)
    if by == "abort":
        await rig.abort("dropped", "s")
    end = (await rig.collect(stream)).end
    assert (end.usage.tokens_computed, end.history_len) == (0, len(await rig.history("s")))
    assert end.outcome is (CLIENT if by == "abort" else AbortReason.DEADLINE)
    return [CLIENT if by == "abort" else AbortReason.DEADLINE]


@pytest.mark.parametrize("then", ["turn", "close", "expire"])
@pytest.mark.parametrize("by", ["abort", "queue limit", "deadline"])
async def test_queued_turn_when_dropped_then_the_session_goes_on_can_be_closed_and_expires(by: str, then: str) -> None:
    """Scenario 3."""
    clock = ManualClock()
    async with field_rig(replace(DEFAULT, running_max=1, waiting_max=1), clock=clock) as rig:
        await rig.open("s", idle_timeout_s=10.0)
        await rig.run("t1", prompt(1, 20), "s")
        history = await rig.history("s")
        rig.pause()
        blocker = await rig.submit("blocker", prompt(9, 20))
        await rig.wait_phase("blocker", "running")
        dropped = await drop_queued(rig, by)
        assert await rig.history("s") == history
        if then == "close":
            await rig.engine.close_session(SessionId("s"))
        elif then == "expire":
            clock.turn(10.0)
            await gone(rig, "s")
        else:
            stream = await rig.submit("t2", prompt(3, 5), session="s")
            rig.go_on()
            assert (await rig.collect(stream)).ids == oracle(history + prompt(3, 5), 8)
        rig.go_on()
        assert (await rig.collect(blocker)).ids == oracle(prompt(9, 20), 8)
        await rig.require_sound([*[LENGTH] * (3 if then == "turn" else 2), *dropped])


@DEPTHS
async def test_streaming_turn_when_retracted_then_its_pages_are_free_and_it_resumes_undisturbed(depth: int) -> None:
    """Scenario 4: mid-decode, with half an answer, which is in no history."""
    config = replace(DEFAULT, pool_pages=pages_of(192), new_token_ratio=0.0, in_flight_max=depth)
    async with field_rig(config) as rig:
        await rig.open("s")
        await rig.run("t1", prompt(1, 20), "s", max_tokens=4)
        history = await rig.history("s")
        rig.pause()
        plain = await rig.submit("plain", prompt(2, 40), max_tokens=100)
        turn = await rig.submit("t2", prompt(3, 30), session="s", max_tokens=80)
        while not rig.retractions:
            await rig.let_steps(1)
        (retracted,) = (fact for fact in rig.facts() if isinstance(fact, TurnRetracted))
        assert 0 < retracted.output_len < 80
        await rig.let_steps(2)
        state = next(it for it in (await rig.snapshot()).turns if it.rid == retracted.rid)
        assert (state.turn_id, state.phase, state.pages, state.kv_committed_len) == ("t2", "waiting", 0, 0)
        owned = {unit for unit, owner in enumerate(rig.book.owners(PoolKind.FULL)) if owner.kind is OwnerKind.REQUEST}
        assert len(owned) == next(it for it in (await rig.snapshot()).turns if it.turn_id == "plain").pages
        assert await rig.history("s") == history
        rig.go_on()
        result = await rig.collect(turn)
        assert result.ids == oracle(history + prompt(3, 30), 80)
        assert (await rig.collect(plain)).ids == oracle(prompt(2, 40), 100)
        assert await rig.history("s") == history + prompt(3, 30) + result.ids
        await rig.require_sound([LENGTH] * 3)


@DEPTHS
async def test_replace_when_without_a_parent_then_running_and_finished_turns_go(depth: int) -> None:
    """Scenario 5: two finished turns, a running branch of each, then a new root in the place of all."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s", streaming=False)
        await rig.run("root", prompt(1, 20), "s")
        await rig.run("child", prompt(2, 20), "s", "root")
        branches = [
            await rig.submit(f"run-{parent}", prompt(3, 5), session="s", parent=parent, max_tokens=200)
            for parent in ("root", "child")
        ]
        for stream in branches:
            await rig.read_some(stream, 2)
        new = await rig.submit("new", prompt(4, 20), session="s", options=TurnOptions(mode=TurnMode.REPLACE))
        for stream in branches:
            end = (await rig.collect(stream)).end
            assert (end.outcome, end.is_committed) == (AbortReason.REPLACED, False)
        assert (await rig.collect(new)).ids == oracle(prompt(4, 20), 8)
        forgotten = [set(fact.turn_ids) for fact in rig.facts() if isinstance(fact, TurnsForgotten)]
        assert forgotten == [{"root", "child"}]
        with pytest.raises(Refusal) as caught:
            await rig.submit("late", [1], session="s", parent="child")
        assert caught.value.reason is RefusalReason.PARENT_UNKNOWN
        await rig.run("root", prompt(5, 5), "s", "new")
        await rig.require_sound([LENGTH] * 4 + [AbortReason.REPLACED] * 2)


@DEPTHS
async def test_turn_when_longer_than_the_idle_timeout_then_idleness_begins_at_its_end(depth: int) -> None:
    """Scenario 6: and refused requests do not keep a session alive."""
    clock = ManualClock()
    async with field_rig(replace(DEFAULT, in_flight_max=depth), clock=clock) as rig:
        await rig.open("s", idle_timeout_s=10.0)
        rig.pause()
        stream = await rig.submit("t", prompt(1, 40), session="s")
        for _ in range(4):
            clock.turn(30.0)
            await rig.let_steps(1)
        rig.go_on()
        assert (await rig.collect(stream)).end.outcome is LENGTH
        clock.turn(6.0)
        await rig.alone("tick", [1], 1)
        assert (await rig.refused([VOCAB_END], session="s")).reason is RefusalReason.TOKEN_OUT_OF_RANGE
        clock.turn(3.9)
        await rig.alone("tack", [1], 1)
        assert "s" in await rig.slots()
        clock.turn(0.1)
        await gone(rig, "s")
        assert [fact.reason for fact in rig.facts() if isinstance(fact, SessionClosed)] == [AbortReason.SESSION_EXPIRED]
        await rig.require_sound([LENGTH] * 3)


VOCAB_END = DEFAULT.vocab_size


@DEPTHS
async def test_idle_sessions_when_they_fill_pool_and_rows_then_others_are_served(depth: int) -> None:
    """Scenario 7: six of them, then a plain request and the turn of a seventh session."""
    config = replace(DEFAULT, pool_pages=pages_of(6 * 64), num_rows=7, in_flight_max=depth)
    async with field_rig(config) as rig:
        for number in range(6):
            await rig.open(f"s{number}")
            await rig.run("t", prompt(number, 56), f"s{number}")
        rows = (await rig.snapshot()).pools[1]
        assert (rows.pool, rows.available) == (PoolKind.ROWS, 0)
        assert (await rig.full_pool()).available == 0
        assert (await rig.alone("plain", prompt(9, 100))).ids == oracle(prompt(9, 100), 8)
        await rig.open("s6")
        assert (await rig.run("t", prompt(6, 100), "s6")).ids == oracle(prompt(6, 100), 8)
        for number in range(7):
            history = await rig.history(f"s{number}")
            assert (await rig.run("next", [3], f"s{number}")).ids == oracle([*history, 3], 8)
        await rig.require_sound([LENGTH] * 15)


STATES = ("idle", "queued", "first chunk", "decoding", "last step", "retracted")


async def bring_to(rig: FieldRig, state: str) -> list[LiveStream]:
    """Session "s", past its first turn, with a turn "t" held in that state, and others where it takes them."""
    await rig.open("s", idle_timeout_s=10.0)
    await rig.run("first", prompt(5, 20), "s", max_tokens=4)
    if state == "idle":
        await rig.run("t", prompt(1, 40), "s", max_tokens=4)
        return []
    rig.pause()
    before: list[LiveStream] = []
    if state in ("queued", "retracted"):
        before = [await rig.submit("other", prompt(2, 40), max_tokens=100)]
        await rig.wait_phase("other", "running")
        if state == "queued":
            before += [await rig.submit(f"more{n}", prompt(3 + n, 40), max_tokens=8) for n in range(2)]
    turn = await rig.submit("t", prompt(1, 70), session="s", max_tokens=4 if state == "last step" else 70)
    if state == "retracted":
        while not rig.retractions:
            await rig.let_steps(1)
    elif state != "queued":
        await rig.let_steps({"first chunk": 1, "decoding": 5, "last step": 5}[state])
    told = next(it for it in (await rig.snapshot()).turns if it.turn_id == "t").output_len
    assert told in {"queued": (0,), "first chunk": (0,), "last step": (3,)}.get(state, range(1, 70))
    return [turn, *before]


async def end_twice(rig: FieldRig, way: str, clock: ManualClock) -> None:
    """Ends session "s", or its turn, in one way, and once more."""
    if way == "abort":
        await rig.abort("t", "s")
        await rig.abort("t", "s")
    elif way == "close":
        await rig.engine.close_session(SessionId("s"))
        await rig.engine.close_session(SessionId("s"))
    elif way == "drain":
        draining = [asyncio.create_task(rig.engine.close_session(SessionId("s"), drain=True)) for _ in range(2)]
        await asyncio.sleep(0)
        rig.go_on()
        await asyncio.gather(*draining)
    else:
        clock.turn(10.0)
        rig.go_on()
        await rig.wait_no_turns()
        clock.turn(10.0)
        await gone(rig, "s")


@pytest.mark.parametrize("way", ["abort", "close", "drain", "expire"])
@pytest.mark.parametrize("state", STATES)
@DEPTHS
async def test_session_when_ended_in_any_state_of_its_turn_and_twice_then_one_ending_and_nothing_left(
    depth: int, state: str, way: str
) -> None:
    """Scenario 8: close, drain-close, expiry (which never fires during a turn), abort."""
    clock = ManualClock()
    pool_tokens = 176 if state == "retracted" else 1024
    running_max = 1 if state == "queued" else 8
    config = replace(
        DEFAULT, pool_pages=pages_of(pool_tokens), running_max=running_max, new_token_ratio=0.0, in_flight_max=depth
    )
    async with field_rig(config, clock=clock) as rig:
        streams = await bring_to(rig, state)
        await end_twice(rig, way, clock)
        rig.go_on()
        ends = [(await rig.collect(stream)).end.outcome for stream in streams]
        outcome: FinishReason | AbortReason = LENGTH
        if state != "idle":
            outcome = {"abort": CLIENT, "close": AbortReason.SESSION_CLOSED}.get(way, LENGTH)
        (ended,) = rig.ended("t")
        assert ended.outcome is outcome
        closed = [fact.reason for fact in rig.facts() if isinstance(fact, SessionClosed)]
        reason = AbortReason.SESSION_EXPIRED if way == "expire" else AbortReason.SESSION_CLOSED
        assert closed == ([] if way == "abort" else [reason])
        await rig.require_sound([LENGTH, *(ends or [LENGTH])])
        assert rig.slots_of("s")[-1].target is SlotState.RELEASED


@DEPTHS
async def test_turn_when_too_long_then_refused_and_the_next_reuses_the_whole_session(depth: int) -> None:
    """Scenario 9."""
    async with field_rig(replace(DEFAULT, context_len=256, in_flight_max=depth)) as rig:
        await rig.open("s")
        await rig.run("t1", prompt(1, 100), "s")
        refusal = await rig.refused(prompt(2, 148), session="s")
        assert (refusal.reason, refusal.limit) == (RefusalReason.PROMPT_EXCEEDS_CONTEXT, 256)
        assert "147 new tokens would fit" in refusal.message
        history = await rig.history("s")
        result = await rig.run("t2", prompt(2, 147), "s")
        assert result.ids == oracle(history + prompt(2, 147), 1)
        usage = result.end.usage
        assert usage.tokens_from_slot + usage.tokens_from_tree == 107
        assert usage.tokens_computed == 147 + 1
        await rig.require_sound([LENGTH, LENGTH])


@pytest.mark.parametrize(("length", "hit"), [(PAGE - 1, 0), (PAGE, 0), (PAGE + 1, PAGE), (2 * PAGE, PAGE)])
@DEPTHS
async def test_prompt_when_around_a_page_and_asked_again_then_whole_pages_hit_and_one_token_is_computed(
    depth: int, length: int, hit: int
) -> None:
    """Scenario 10: a page less one, a page, a page and one; a prompt that is cached to its last token."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        for turn in ("first", "again"):
            result = await rig.alone(turn, prompt(1, length))
            assert result.ids == oracle(prompt(1, length), 8)
            assert result.end.usage.tokens_from_tree == (hit if turn == "again" else 0)
        await rig.require_sound([LENGTH, LENGTH])


@pytest.mark.parametrize("max_tokens", [PAGE - 1, PAGE, PAGE + 1, PAGE + 2])
@DEPTHS
async def test_turn_when_it_ends_on_a_page_edge_then_the_next_computes_its_own_ids_and_one(
    depth: int, max_tokens: int
) -> None:
    """Scenario 10: history of 2 pages less one, 2 pages, and past them; its KV is one token shorter."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s")
        first = await rig.run("t1", prompt(1, PAGE), "s", max_tokens=max_tokens)
        assert (await rig.state_of("s")).kv_committed_len == PAGE + max_tokens - 1
        second = await rig.run("t2", [7], "s")
        assert second.ids == oracle([*prompt(1, PAGE), *first.ids, 7], 8)
        assert second.end.usage.tokens_computed == 1 + 1
        await rig.require_sound([LENGTH, LENGTH])


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
@DEPTHS
async def test_turn_when_cancelled_and_sent_again_then_strangers_with_its_prefix_are_not_disturbed(
    depth: int, num_steps: int
) -> None:
    """Scenario 11: cancelled in a chunk, in the last one, and while it decodes; two strangers share three pages."""
    shared = prompt(1, 3 * PAGE)
    async with field_rig(replace(DEFAULT, prefix_wait_tokens=4096, in_flight_max=depth)) as rig:
        rig.pause()
        streams = [await rig.submit(f"stranger{n}", shared + prompt(2 + n, 9), max_tokens=30) for n in range(2)]
        cancelled = await rig.submit("mine", shared + prompt(9, 20), max_tokens=30)
        await rig.let_steps(num_steps)
        await rig.abort("mine")
        assert (await rig.collect(cancelled)).end.outcome is CLIENT
        retried = await rig.submit("mine", shared + prompt(9, 20), max_tokens=30)
        rig.go_on()
        for number, stream in enumerate(streams):
            assert (await rig.collect(stream)).ids == oracle(shared + prompt(2 + number, 9), 30)
        assert (await rig.collect(retried)).ids == oracle(shared + prompt(9, 20), 30)
        await rig.require_sound([CLIENT] + [LENGTH] * 3)
