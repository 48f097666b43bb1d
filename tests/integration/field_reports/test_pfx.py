"""PFX: what the prefix cache gives is the KV of these very ids, of nobody else, and still there."""

from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, CommitAck, FinishReason, Submit
from engine.core.core import Core
from engine.core.events import CommitRequested, TurnAdmitted
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.ownership import Move
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, PAGE, field_rig, pages_of, prompt
from tests.integration.field_reports.wire import fields_sent, method_names, names_with
from tests.kit.busy_core import answer
from tests.kit.runtime_rig import oracle

LENGTH, CLIENT = FinishReason.LENGTH, AbortReason.CLIENT


def run_in_namespace(core: Core, rid: int, namespace: str) -> TurnAdmitted:
    """One turn of the same 64 ids, to its end. Returns how it was admitted."""
    core.apply(Submit(Rid(rid), TurnId(f"t{rid}"), pack_ids(prompt(1, 64)), max_tokens=2, namespace=namespace), 0.0)
    told = []
    while core.has_work:
        plan = core.next_plan(0.0)
        if plan is not None:
            core.advance(answer(plan), 0.0)
        for numbered in core.take_events():
            told.append(numbered.event)
            if isinstance(numbered.event, CommitRequested):
                core.apply(CommitAck(numbered.event.rid), 0.0)
    return next(fact for fact in told if isinstance(fact, TurnAdmitted))


def test_prompt_when_of_another_namespace_then_no_hit_and_the_hit_of_its_own_beside_it() -> None:
    """PFX-01 (vllm-project/vllm#44701): one namespace is one string; the wire offers neither an adapter nor a salt."""
    core = Core(replace(DEFAULT, vocab_size=1000))
    assert run_in_namespace(core, 1, "X").tokens_from_tree == 0
    assert run_in_namespace(core, 2, "").tokens_from_tree == 0
    assert run_in_namespace(core, 3, "X").tokens_from_tree == 48
    assert run_in_namespace(core, 4, "").tokens_from_tree == 48


async def test_prompts_when_they_differ_in_one_id_then_only_the_pages_before_it_are_reused() -> None:
    """PFX-04 (openvinotoolkit/openvino.genai#3722): there is no hash to collide; the ids themselves are compared."""
    ids = prompt(1, 64)
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(8192))) as rig:
        await rig.alone("first", ids)
        for place in range(64):
            other = [*ids[:place], (ids[place] + 1) % 256, *ids[place + 1 :]]
            result = await rig.alone(f"t{place}", other)
            assert result.end.usage.tokens_from_tree == place // PAGE * PAGE
            assert result.ids == oracle(other, 8)
        await rig.require_sound([LENGTH] * 65)


@DEPTHS
async def test_prompt_when_aborted_between_chunks_then_the_same_prompt_later_is_that_of_a_fresh_server(
    depth: int,
) -> None:
    """PFX-05 (sgl-project/sglang#38319): aborted after chunk 2 of 4; three others use the pages up; then again."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(512), in_flight_max=depth)) as rig:
        rig.pause()
        stream = await rig.submit("t", prompt(1, 128))
        await rig.let_steps(2)
        await rig.abort("t")
        assert (await rig.collect(stream)).end.outcome is CLIENT
        rig.go_on()
        assert sum(len(move.pages) for move in rig.moves(Move.DONATE)) == 64 // PAGE, "answered chunks are the cache's"
        for number in range(3):
            other = prompt(10 + number, 200)
            assert (await rig.alone(f"other{number}", other)).ids == oracle(other, 8)
        assert rig.moves(Move.EVICT), "the pool was used up"
        again = await rig.alone("t", prompt(1, 128))
        assert again.ids == oracle(prompt(1, 128), 8)
        assert again.end.usage.tokens_computed == 128, "none of its pages was left"
        await rig.require_sound([CLIENT] + [LENGTH] * 4)


@DEPTHS
@pytest.mark.parametrize("length", [PAGE - 1, PAGE, PAGE + 1])
async def test_prompt_when_finished_and_extended_then_the_match_never_covers_what_was_freed(
    depth: int, length: int
) -> None:
    """PFX-07 (sgl-project/sglang#31486): full attention; 64 generated tokens, a prompt of their beginning."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(256), in_flight_max=depth)) as rig:
        first = await rig.alone("first", prompt(1, length), 64)
        history = prompt(1, length) + first.ids
        second = await rig.alone("second", history[:48], 16)
        assert second.ids == history[48:64]
        assert second.end.usage.tokens_from_tree == 32, "one token is always computed, on a page of its own"
        await rig.alone("everything", prompt(2, 250), 4)
        assert sum(len(move.pages) for move in rig.moves(Move.EVICT)) >= 4, "all that was cached was evicted"
        again = await rig.alone("again", history[:48], 16)
        assert (again.ids, again.end.usage.tokens_from_tree) == (history[48:64], 0)
        await rig.require_sound([LENGTH] * 4)


def test_api_when_looked_through_then_offers_no_adapter_and_no_salt() -> None:
    """PFX-01 (vllm-project/vllm#44701)."""
    assert not names_with(fields_sent(), "salt", "adapter", "lora", "variant")
    assert "input_ids" not in fields_sent(), "the names are those of this API: token_ids"
    assert "token_ids" in fields_sent()


def test_api_when_looked_through_then_weights_can_not_be_replaced_in_a_running_server() -> None:
    """PFX-09 (InternLM/lmdeploy#4917): so nothing that is cached can be of other weights."""
    assert method_names() >= {"Generate", "Open", "PoolStats"}
    assert not names_with(method_names(), "weight", "load", "update", "adapter")
