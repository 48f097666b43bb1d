"""Stop strings with the real core: the turn ends where the text does, and its session keeps the ids up to there."""

import pytest

from engine.core.commands import FinishReason
from engine.core.ids import SessionId, unpack_ids
from engine.runtime.handle import Delta, TurnEvent
from tests.kit.runtime_rig import RuntimeRig, end_of, ids_of, oracle, read_all, running

DEPTHS = pytest.mark.parametrize("in_flight_max", [1, 2])
NUM_TOKENS = 40


def find_stop() -> tuple[list[int], str, int]:
    """A prompt, two letters that its answer has next to each other, and the length of the answer up to them."""
    for seed in range(256):
        prompt = [seed, 1, 2]
        answer = oracle(prompt, NUM_TOKENS)
        for end in range(6, NUM_TOKENS - 4):
            stop = bytes(answer[end - 2 : end])
            if stop.isalpha() and bytes(answer).find(stop) == end - 2 and answer[: end - 2].count(stop[0]) == 0:
                return prompt, stop.decode("ascii"), end
    raise AssertionError("no prompt has such an answer")


PROMPT, STOP, STOP_LEN = find_stop()
ANSWER = oracle(PROMPT, NUM_TOKENS)


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def text_before_stop() -> str:
    return bytes(ANSWER[: STOP_LEN - 2]).decode(errors="replace")


async def run(rig: RuntimeRig, max_tokens: int, *stops: str) -> list[TurnEvent]:
    return await read_all(await rig.submit("t", PROMPT, session="s", max_tokens=max_tokens, stop=stops))


async def require_history(rig: RuntimeRig, length: int) -> None:
    """The session has the prompt and so many ids of the answer, and goes on as if it had been given them."""
    history = PROMPT + ANSWER[:length]
    assert unpack_ids(await rig.engine.find_base(SessionId("s"), None)).tolist() == history
    events = await read_all(await rig.submit("next", [5, 6], session="s", max_tokens=6))
    assert ids_of(events) == oracle([*history, 5, 6], 6)
    usage = end_of(events).usage
    assert usage.tokens_from_slot + usage.tokens_from_tree >= len(history) - 1, "the KV up to the cut is kept"
    books = await rig.full_pool()
    assert books.uncached == 0


@DEPTHS
@pytest.mark.parametrize("max_tokens", [NUM_TOKENS, STOP_LEN + 1, STOP_LEN])
async def test_turn_when_a_stop_string_is_complete_then_stopped_there(in_flight_max: int, max_tokens: int) -> None:
    """Also in the very step that would have ended the turn as `length`: the limit did not end it."""
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s")
        events = await run(rig, max_tokens, "never comes", STOP)
        end = end_of(events)
        assert (end.outcome, end.stop_string) == (FinishReason.STOP, STOP)
        assert ids_of(events) == ANSWER[:STOP_LEN], "no id behind the cut is told"
        assert text_of(events) == text_before_stop()
        assert (end.usage.output_len, end.history_len) == (STOP_LEN, len(PROMPT) + STOP_LEN)
        await require_history(rig, STOP_LEN)


@DEPTHS
async def test_turn_when_the_limit_comes_inside_a_stop_string_then_length_and_all_of_the_text(
    in_flight_max: int,
) -> None:
    """STR-13 (vllm-project/vllm#58228)."""
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s")
        events = await run(rig, STOP_LEN - 1, STOP)
        end = end_of(events)
        assert (end.outcome, end.stop_string) == (FinishReason.LENGTH, None)
        assert text_of(events) == text_before_stop() + STOP[0]
        await require_history(rig, STOP_LEN - 1)


async def test_turn_when_no_stop_string_comes_then_as_without() -> None:
    async with running() as rig:
        await rig.open("s")
        events = await run(rig, NUM_TOKENS, "never comes")
        assert (ids_of(events), text_of(events)) == (ANSWER, bytes(ANSWER).decode(errors="replace"))


@DEPTHS
async def test_turns_when_only_one_has_a_stop_string_then_its_neighbour_is_untouched(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s")
        neighbour = await rig.submit("other", PROMPT, max_tokens=NUM_TOKENS)
        assert ids_of(await run(rig, NUM_TOKENS, STOP)) == ANSWER[:STOP_LEN]
        assert ids_of(await read_all(neighbour)) == ANSWER
