"""CHP: a prompt in chunks goes forward, and is paid for once, whatever becomes of the prefix cache."""

from collections import Counter
from dataclasses import replace

from engine.core.commands import FinishReason
from engine.core.events import StepPlanned
from engine.core.ids import pages_for
from engine.core.ownership import Move
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, PAGE, field_rig, pages_of, prompt
from tests.integration.field_reports.wire import fields_sent, names_with
from tests.kit.runtime_rig import oracle

LENGTH = FinishReason.LENGTH
UNCACHED = replace(DEFAULT, prefix_cache=False)


@DEPTHS
async def test_prompt_when_nothing_is_cached_then_its_chunks_go_forward_and_the_next_is_served(depth: int) -> None:
    """CHP-01 (sgl-project/sglang#36855): the wire has no such flag; the server's own makes no chunk start anew."""
    async with field_rig(replace(UNCACHED, pool_pages=pages_of(128), in_flight_max=depth)) as rig:
        long = await rig.alone("long", prompt(1, 96), 1)
        assert long.ids == oracle(prompt(1, 96), 1)
        planned = [fact.num_tokens for fact in rig.facts() if isinstance(fact, StepPlanned)]
        assert planned == [32, 32, 32]
        normal = await rig.alone("normal", prompt(1, 96), 8)
        assert normal.ids == oracle(prompt(1, 96), 8)
        assert normal.end.usage.tokens_from_tree == 0
        await rig.require_sound([LENGTH, LENGTH])


@DEPTHS
async def test_prompts_when_the_cache_is_off_then_each_takes_the_pages_of_its_length_and_gives_all_back(
    depth: int,
) -> None:
    """CHP-03 (sgl-project/sglang#33996): 8 at once, 3 chunks each."""
    lengths = [65 + 4 * number for number in range(8)]
    async with field_rig(replace(UNCACHED, pool_pages=pages_of(2048), step_tokens=256, in_flight_max=depth)) as rig:
        rig.pause()
        streams = [await rig.submit(f"t{length}", prompt(length, length), max_tokens=2) for length in lengths]
        rig.go_on()
        for stream, length in zip(streams, lengths, strict=True):
            assert (await rig.collect(stream)).ids == oracle(prompt(length, length), 2)
        granted: Counter[int] = Counter()
        for move in rig.moves(Move.GRANT):
            granted[move.target.name] += len(move.pages)
        # The last of the two tokens never has KV.
        assert [granted[rid] for rid in sorted(granted)] == [pages_for(length + 1, PAGE) for length in lengths]
        books = await rig.full_pool()
        assert books.available == books.total
        await rig.require_sound([LENGTH] * 8)


def test_api_when_looked_through_then_no_request_can_choose_not_to_be_cached() -> None:
    """CHP-01 (sgl-project/sglang#36855): what is internal can not be set by a client."""
    assert not names_with(fields_sent(), "cache", "skip", "insert", "bypass", "chunk")
