"""Prompts that share their beginning only: what of it the second one does not compute again, by what models look back
to."""

from dataclasses import replace

import pytest

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.events import TurnAdmitted
from engine.core.ids import Rid, TurnId, pack_ids
from tests.kit.core_parts import CoreRig

COMMON = list(range(100, 124))
PLAIN = CoreConfig(
    page_size=4, pool_pages=65, num_rows=3, context_len=64, vocab_size=1000, chunk_tokens=8, draft_tokens_max=1
)
WINDOWS = replace(PLAIN, window=6, swa_pages=40)
STATES = replace(PLAIN, state_slots=20, state_interval=8)
FEW_STATES = replace(STATES, state_slots=6)
BOTH = replace(WINDOWS, state_slots=20, state_interval=8)


def hit(config: CoreConfig, common: int) -> int:
    """Tokens that the second of two prompts of 40, alike in the first `common`, finds in the cache."""
    rig = CoreRig(config)
    for rid in (1, 2):
        ids = COMMON[:common] + [rid] * (40 - common)
        rig.apply(Submit(Rid(rid), TurnId(f"t{rid}"), pack_ids(ids), max_tokens=2, ignore_eos=True))
        rig.run()
    second = [event for event in rig.told if isinstance(event, TurnAdmitted) and event.rid == 2]
    return second[0].tokens_from_tree


@pytest.mark.parametrize(
    ("config", "common", "expected"),
    [
        (PLAIN, 24, 24),
        (PLAIN, 23, 20),
        (WINDOWS, 24, 24),
        (WINDOWS, 23, 20),
        (STATES, 24, 24),
        (STATES, 23, 16),
        (STATES, 7, 0),
        (BOTH, 24, 24),
        (BOTH, 15, 8),
    ],
    ids=[
        "plain",
        "plain, in a page",
        "windows",
        "windows, in a page",
        "states",
        "states, between",
        "no state",
        "all",
        "all, between",
    ],
)
def test_beginning_when_two_prompts_share_it_then_it_is_found_where_it_can_be_used(
    config: CoreConfig, common: int, expected: int
) -> None:
    assert hit(config, common) == expected


def test_beginning_when_there_are_few_states_then_its_older_checkpoints_give_way_to_the_last_one() -> None:
    assert [hit(FEW_STATES, common) for common in (8, 24)] == [0, 24]
    assert hit(STATES, 8) == 8
