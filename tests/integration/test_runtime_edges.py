"""Edges of the runtime and the services: deadlines of callers who are gone, inputs that could never fit."""

import asyncio

import pytest

from engine.core.commands import AbortReason
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import TurnEnded
from engine.runtime.config import RuntimeConfig
from engine.runtime.output import TurnOutput
from services.client import TenureError
from services.prompts import refuse_past_context
from tests.kit.runtime_rig import running
from tests.kit.server_rig import CONFIG, byte_tokenizer, running_server


async def test_deadline_when_the_caller_is_gone_before_the_turn_is_accepted_then_it_holds_all_the_same() -> None:
    runtime = RuntimeConfig(full_check_steps=1, expire_interval_s=0.01, warm_up=False, detach_grace_s=30.0)
    async with running(runtime=runtime, context_len=256) as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.01
        task = asyncio.create_task(rig.submit("t", [1, 2, 3], max_tokens=200, deadline_s=0.02, content=b"c"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rig.wait_no_turns()
        ends = [told.event for told in rig.sink.events if isinstance(told.event, TurnEnded)]
        assert [end.outcome for end in ends] == [AbortReason.DEADLINE]


@pytest.mark.parametrize("ids", [[0x41, 0xE2], [0x41, 0xE2, 0x82]])
def test_stop_string_when_the_final_replacement_character_completes_it_then_it_is_cut(ids: list[int]) -> None:
    output = TurnOutput(byte_tokenizer().vocabulary, ["A\ufffd"])
    output.push(ids)
    output.complete()
    rest = output.read_rest()
    told = output.read(0).text + (rest.text if rest is not None else "")
    assert (told, output.stop_string) == ("", "A\ufffd")


async def test_ids_when_they_could_never_fit_then_refused_with_the_number_that_would() -> None:
    async with running_server() as rig:
        with pytest.raises(TenureError) as caught:
            await rig.client.generate(token_ids=[1] * 1_000_000).text()
        assert caught.value.reason == RefusalReason.PROMPT_EXCEEDS_CONTEXT
        assert f"{CONFIG.context_len - 1} new tokens would fit" in str(caught.value)


async def test_text_when_it_could_never_fit_then_refused_before_it_is_encoded() -> None:
    async with running_server() as rig:
        with pytest.raises(TenureError) as caught:
            await rig.client.generate("7" * 1_000_000).text()
        assert caught.value.reason == RefusalReason.PROMPT_EXCEEDS_CONTEXT
        assert "at least 1000000 new tokens" in str(caught.value), "the exact number is known after encoding only"


@pytest.mark.parametrize(("num_ids", "is_refused"), [(0, False), (99, False), (100, True), (10**9, True)])
def test_length_when_it_leaves_room_for_one_more_then_it_passes(num_ids: int, is_refused: bool) -> None:
    if not is_refused:
        refuse_past_context(num_ids, context_len=100)
        return
    with pytest.raises(Refusal) as caught:
        refuse_past_context(num_ids, context_len=100)
    assert (caught.value.value, caught.value.limit) == (num_ids, 100)
