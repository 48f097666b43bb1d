"""LIM: what does not fit is refused or cut, by name, and never stops those behind it."""

from dataclasses import replace

import grpc
import pytest

from engine.core.commands import FinishReason
from engine.core.errors import RefusalReason
from engine.core.events import StepAnswered, StepPlanned, TurnAdmitted, TurnEnded
from engine.runtime.handle import TurnOptions
from services.client import TenureError, Turn
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, field_rig, pages_of, prompt
from tests.kit.runtime_rig import oracle
from tests.kit.server_rig import CONFIG, running_server

LENGTH = FinishReason.LENGTH


@DEPTHS
@pytest.mark.parametrize(
    ("context_len", "prompt_len", "asked", "given"),
    [pytest.param(64, 60, 1000, 4, id="LIM-01"), pytest.param(1024, 900, 512, 124, id="LIM-03")],
)
async def test_turn_when_the_context_ends_then_length_and_neither_a_shift_nor_a_repetition(
    depth: int, context_len: int, prompt_len: int, asked: int, given: int
) -> None:
    """LIM-01 (ggml-org/llama.cpp#3969) and LIM-03 (ggml-org/llama.cpp#25026)."""
    config = replace(DEFAULT, pool_pages=pages_of(2048), context_len=context_len, in_flight_max=depth)
    async with field_rig(config) as rig:
        result = await rig.alone("t", prompt(1, prompt_len), asked)
        assert result.ids == oracle(prompt(1, prompt_len), given)
        assert result.end.outcome is LENGTH
        assert sum(isinstance(fact, StepPlanned) for fact in rig.facts()) <= prompt_len // 32 + given + 2
        await rig.require_sound([LENGTH])


@pytest.mark.parametrize("session", [None, "s"], ids=["plain", "session"])
@DEPTHS
async def test_prompt_when_around_the_context_then_one_token_or_refused_with_what_would_fit(
    depth: int, session: str | None
) -> None:
    """LIM-05 (vllm-project/vllm#12600): L-1, L, L+1 and 10 L."""
    async with field_rig(replace(DEFAULT, context_len=64, in_flight_max=depth)) as rig:
        await rig.open("s")
        for length in (64, 65, 640):
            refusal = await rig.refused(prompt(1, length), session=session)
            assert refusal.reason is RefusalReason.PROMPT_EXCEEDS_CONTEXT
            assert (refusal.value, refusal.limit) == (length, 64)
            assert "63 new tokens would fit" in refusal.message
        result = await rig.collect(await rig.submit("t", prompt(1, 63), session=session, max_tokens=None))
        assert (result.ids, result.end.outcome) == (oracle(prompt(1, 63), 1), LENGTH)
        await rig.require_sound([LENGTH])


@pytest.mark.parametrize("session", [None, "s"], ids=["plain", "session"])
@pytest.mark.parametrize(
    ("ids", "max_tokens", "reason", "field"),
    [
        ([], 8, RefusalReason.EMPTY_PROMPT, "input"),
        ([1], 0, RefusalReason.MAX_TOKENS_INVALID, "max_tokens"),
        ([1], -1, RefusalReason.MAX_TOKENS_INVALID, "max_tokens"),
        ([], 0, RefusalReason.EMPTY_PROMPT, "input"),
    ],
)
async def test_turn_when_nothing_is_given_or_asked_for_then_refused_by_name(
    session: str | None, ids: list[int], max_tokens: int, reason: RefusalReason, field: str
) -> None:
    """LIM-07 (sgl-project/sglang#1593): on a plain request, on a new session, and on one with a history."""
    async with field_rig() as rig:
        await rig.open("s")
        for _ in range(2):
            refusal = await rig.refused(ids, session=session, max_tokens=max_tokens)
            assert (refusal.reason, refusal.field) == (reason, field)
            if not await rig.history("s"):
                await rig.run("t", prompt(1, 5), "s")
        await rig.require_sound([LENGTH])


async def test_turn_of_a_session_when_its_text_or_its_ids_are_empty_then_invalid_argument_and_served_on() -> None:
    """LIM-07 (sgl-project/sglang#1593), on the wire: text='', no ids, max_tokens=0."""
    async with running_server(CONFIG) as rig:
        session = rig.client.session("s")
        await session.open()
        bad: list[tuple[Turn, str]] = [
            (session.turn(text=""), "text.text"),
            (session.turn(token_ids=[]), "tokens.token_ids"),
            (session.turn(token_ids=[1], max_tokens=0), "sampling.max_tokens"),
        ]
        for turn, field in bad:
            with pytest.raises(TenureError) as caught:
                await rig.collect(turn)
            assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert await rig.collect(session.turn(token_ids=[1, 2], max_tokens=5)) == oracle([1, 2], 5)
        assert (await rig.client.check()).is_clean


@DEPTHS
async def test_head_of_the_queue_when_it_needs_most_of_the_pool_then_admitted_as_soon_as_the_others_have_ended(
    depth: int,
) -> None:
    """LIM-09 (vllm-project/vllm#45388): endings are taken before admission, and do not wait for the queue to move."""
    config = replace(DEFAULT, pool_pages=pages_of(640), new_token_ratio=1.0, in_flight_max=depth)
    async with field_rig(config) as rig:
        rig.pause()
        holders = [await rig.submit(f"holder{n}", prompt(n, 90), max_tokens=8) for n in range(4)]
        await rig.let_steps(1)
        await rig.wait_phase("holder3", "running")
        head = await rig.submit("head", prompt(20, 560), max_tokens=8, options=TurnOptions(priority=9))
        behind = await rig.submit("behind", prompt(21, 30), max_tokens=8)
        rig.go_on()
        assert (await rig.collect(head)).ids == oracle(prompt(20, 560), 8)
        assert (await rig.collect(behind)).ids == oracle(prompt(21, 30), 8)
        for number, stream in enumerate(holders):
            assert (await rig.collect(stream)).ids == oracle(prompt(number, 90), 8)
        facts = rig.facts()
        admitted = [index for index, fact in enumerate(facts) if isinstance(fact, TurnAdmitted)][4]
        ended = [index for index, fact in enumerate(facts) if isinstance(fact, TurnEnded)][3]
        assert ended < admitted, "all four had to go"
        between = facts[ended:admitted]
        assert sum(isinstance(fact, StepAnswered) for fact in between) <= depth - 1, "at most the one under way"
        assert not any(isinstance(fact, StepPlanned) for fact in between)
        await rig.require_sound([LENGTH] * 6)
