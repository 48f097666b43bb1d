"""Windowed, capped and sunken attention of a token does not depend, in any bit, on batch, chunks, pages or threads."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from engine.executor.attention import BLOCK_LEN, ScoreOptions, soft_cap
from tests.kit.attention_rig import AttentionRig, Heads, Released, random_heads

BATCH_SIZES = (1, 2, 3, 7, 8, 33)
CHUNK_LENS = (1, 7, 64)
PLACEMENTS = ((1, 1), (1, 16), (1, 64), (2, 16))
"""Threads and page size. Pages only move memory about, so one size is enough for the second thread."""
LENGTH = BLOCK_LEN + 14
WINDOW = 9
"""So small that the windows of the last tokens begin in the second block."""
GROUP_SIZE = 3
SINKS = torch.tensor([-1.0, 0.0, 2.0, 0.5, 1.0, -3.0])
EVERYTHING = ScoreOptions(0.3, soft_cap=5.0, sinks=SINKS)
SINGLE = {
    "window": (WINDOW, ScoreOptions(0.3)),
    "cap": (None, ScoreOptions(0.3, soft_cap=5.0)),
    "sinks": (None, ScoreOptions(0.3, sinks=SINKS)),
    "window of a block and one": (BLOCK_LEN + 1, EVERYTHING),
    "everything in full": (None, EVERYTHING),
}
FEW = [(1, 1, 1, 1), (1, 7, 1, 64), (3, 64, 1, 16), (7, 7, 2, 16), (8, 1, 2, 1), (33, 7, 1, 16), (33, 64, 2, 64)]

pytestmark = pytest.mark.exact


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to run the same tokens."""

    batch_size: int
    chunk_len: int
    threads: int
    page_size: int


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@cache
def sequence(seed: int, length: int) -> Heads:
    """Scores of up to some 30, so that the cap bends them."""
    return random_heads(seed, length, num_kv_heads=2, group_size=GROUP_SIZE, head_dim=16, spread=3.0)


def attend(cut: Cut, window: int | None, options: ScoreOptions, length: int = LENGTH) -> torch.Tensor:
    """Every token's output of one sequence, in the middle of a batch of strangers that are cut otherwise."""
    torch.set_num_threads(cut.threads)
    target = cut.batch_size // 2
    sequences = [sequence(0 if place == target else 1 + place, length) for place in range(cut.batch_size)]
    rig = AttentionRig(sequences, page_size=cut.page_size, window=window, released=Released.STALE)
    outputs = []
    for start in range(0, length, cut.chunk_len):
        lens = [min(1 + place % cut.chunk_len, length - rig.planned_len(place)) for place in range(cut.batch_size)]
        lens[target] = min(cut.chunk_len, length - start)
        outputs.append(rig.step(lens, options)[target])
    return torch.cat(outputs)


def test_attention_with_window_cap_and_sinks_when_cut_in_every_way_then_equal_bit_for_bit() -> None:
    expected = attend(Cut(1, LENGTH, 1, 16), WINDOW, EVERYTHING)
    cuts = [
        Cut(batch_size, chunk_len, threads, page_size)
        for batch_size, chunk_len, (threads, page_size) in itertools.product(BATCH_SIZES, CHUNK_LENS, PLACEMENTS)
    ]
    different = [cut for cut in cuts if not torch.equal(attend(cut, WINDOW, EVERYTHING), expected)]
    assert not different
    assert len(cuts) == 72


@pytest.mark.parametrize("name", SINGLE)
def test_attention_with_one_option_when_cut_then_equal_bit_for_bit(name: str) -> None:
    window, options = SINGLE[name]
    length = LENGTH + (0 if window is None else window)
    expected = attend(Cut(1, length, 1, 16), window, options, length)
    assert not [cut for cut in FEW if not torch.equal(attend(Cut(*cut), window, options, length), expected)]


def test_attention_when_one_option_goes_then_the_numbers_are_others() -> None:
    """What is compared above does have a window, a cap and sinks."""
    cut = Cut(1, LENGTH, 1, 16)
    expected = attend(cut, WINDOW, EVERYTHING)
    others = [
        attend(cut, None, EVERYTHING),
        attend(cut, WINDOW, ScoreOptions(0.3, sinks=SINKS)),
        attend(cut, WINDOW, ScoreOptions(0.3, soft_cap=5.0)),
    ]
    assert all((other - expected).abs().max() > 0.1 for other in others)


@pytest.mark.parametrize("threads", [1, 2])
def test_soft_cap_when_its_line_has_any_length_then_each_number_is_capped_alike(threads: int) -> None:
    """Vector code may end in a tail of another formula: logits come in lines of any length, cut among threads."""
    torch.set_num_threads(threads)
    line = torch.randn(40_000, generator=torch.Generator().manual_seed(1)) * 20
    whole = soft_cap(line, 30.0)
    assert torch.equal(whole[:200], torch.cat([soft_cap(line[place : place + 1], 30.0) for place in range(200)]))
    for length in (*range(1, 70), 2047, 2049, 32_769, 39_999):
        for start in (0, 1):
            part = line[start : start + length].clone()
            assert torch.equal(soft_cap(part, 30.0), whole[start : start + length])
