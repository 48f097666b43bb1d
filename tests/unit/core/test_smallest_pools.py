"""The smallest pools that a configuration allows are enough for any turn that is alone: it never waits for ever."""

from dataclasses import replace

import pytest

from engine.core.commands import FinishReason, Fork, Open
from engine.core.config import CoreConfig
from engine.core.events import TurnEnded
from engine.core.ids import SessionId, TurnId
from engine.core.states import STATES_A_TURN
from tests.kit.core_parts import CoreRig

LARGE = 1000


def smallest(config: CoreConfig) -> CoreConfig:
    """As few SWA pages and states as it takes."""
    if config.window is not None:
        config = replace(
            replace(config, swa_pages=LARGE), swa_pages=1 + replace(config, swa_pages=LARGE).swa_turn_pages
        )
    return config


def base(*, window: int | None, has_states: bool, chunk_tokens: int, in_flight_max: int) -> CoreConfig:
    return smallest(
        CoreConfig(
            page_size=4,
            pool_pages=120,
            num_rows=4,
            context_len=240,
            vocab_size=1000,
            chunk_tokens=chunk_tokens,
            in_flight_max=in_flight_max,
            draft_tokens_max=1,
            window=window,
            swa_pages=0 if window is None else LARGE,
            state_slots=1 + STATES_A_TURN if has_states else 0,
            state_interval=64,
        )
    )


@pytest.mark.parametrize("in_flight_max", [1, 2])
@pytest.mark.parametrize("chunk_tokens", [1, 16])
@pytest.mark.parametrize(("window", "has_states"), [(16, False), (1, False), (40, False), (None, True), (16, True)])
def test_long_turns_of_a_session_when_pools_are_the_smallest_then_they_run_to_their_end(
    window: int | None, has_states: bool, chunk_tokens: int, in_flight_max: int
) -> None:
    rig = CoreRig(base(window=window, has_states=has_states, chunk_tokens=chunk_tokens, in_flight_max=in_flight_max))
    rig.apply(Open(SessionId("s"), streaming=True))
    for turn, num_new, max_tokens in (("t1", 20, 2), ("t2", 50, 120)):
        rig.submit(replace(rig.command(turn, list(range(100, 100 + num_new)), "s"), max_tokens=max_tokens))
        rig.run()
    ended = rig.of(TurnEnded)
    assert [event.outcome for event in ended] == [FinishReason.LENGTH] * 2
    assert ended[-1].history_len == 20 + 2 + 50 + 120


@pytest.mark.parametrize(("page_size", "window", "chunk_tokens"), [(1, 64, 8), (4, 256, 64), (16, 512, 512)])
def test_long_turn_when_the_last_one_left_most_of_a_window_locked_then_it_runs_to_its_end(
    page_size: int, window: int, chunk_tokens: int
) -> None:
    """Too little is generated for the cache's window to be given up: it is pinned beside the turn's own."""
    config = replace(
        base(window=window, has_states=False, chunk_tokens=chunk_tokens, in_flight_max=1),
        page_size=page_size,
        pool_pages=4096 // page_size + 1,
        context_len=4096,
        step_tokens=chunk_tokens + 8,
        vocab_size=10_000,
        swa_pages=4096,
    )
    rig = CoreRig(smallest(config))
    rig.open("s", streaming=True)
    for turn, num_new, max_tokens in (("t1", window, window // 4 - 1), ("t2", 3 * window, 2)):
        rig.submit(replace(rig.command(turn, list(range(num_new)), "s"), max_tokens=max_tokens))
        rig.run()
    assert [event.outcome for event in rig.of(TurnEnded)] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("window", [3, 16, 40])
def test_fork_when_pools_are_the_smallest_then_a_turn_on_what_it_has_locked_runs(window: int) -> None:
    """Its window is the cache's: it is pinned there, and not wanted once more."""
    rig = CoreRig(base(window=window, has_states=False, chunk_tokens=16, in_flight_max=1))
    rig.apply(Open(SessionId("s"), streaming=True))
    rig.submit(replace(rig.command("t1", list(range(100, 161)), "s"), max_tokens=4))
    rig.run()
    rig.apply(Fork(SessionId("s"), SessionId("f")))
    rig.submit(replace(rig.command("t2", list(range(200, 250)), "f"), max_tokens=60))
    rig.run()
    assert [event.turn_id for event in rig.of(TurnEnded)] == [TurnId("t1"), TurnId("t2")]
