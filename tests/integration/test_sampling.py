"""What is drawn from logits: the right distribution, and the same tokens whatever else is in the step."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from engine.executor.batch import Draws
from engine.executor.sampling import choose_tokens, gumbel_noise

NUM_DRAWS = 20_000
LOGITS = [1.5, -0.3, 2.2, 0.0, 0.9, -1.2, 2.2, 0.4, -2.0, 1.1, 0.2, 1.5]
"""With two pairs of equals, so that edges of top_k fall between them."""
Z_LIMIT = 4.75
"""Standard normal quantile of 1 - 1e-6."""


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draws_of(samplings: Sequence[Sampling], positions: Sequence[int]) -> Draws:
    """One row each, greedy ones left out as a batch leaves them out."""
    drawn = [
        (place, *pair) for place, pair in enumerate(zip(samplings, positions, strict=True)) if not pair[0].is_greedy
    ]
    return Draws(
        places=np.array([place for place, _, _ in drawn], np.int64),
        positions=np.array([position for _, _, position in drawn], np.int64),
        seeds=np.array([sampling.seed for _, sampling, _ in drawn], np.int64),
        temperatures=np.array([sampling.temperature for _, sampling, _ in drawn], np.float64),
        top_ks=np.array([sampling.top_k for _, sampling, _ in drawn], np.int64),
        top_ps=np.array([sampling.top_p for _, sampling, _ in drawn], np.float64),
    )


def choose(logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int] | None = None) -> list[int]:
    chosen: list[int] = choose_tokens(logits, draws_of(samplings, positions or [7] * len(samplings))).tolist()
    return chosen


def draw_many(logits: Sequence[float], sampling: Sampling, count: int = NUM_DRAWS) -> list[int]:
    """The tokens at positions 0 to `count` - 1, all from the same logits."""
    rows = torch.tensor(logits).expand(count, -1)
    return choose(rows, [sampling] * count, range(count))


def kept_shares(sampling: Sampling) -> dict[int, float]:
    """What each token of LOGITS should get, worked out plainly: temperature, then top_k, then top_p."""
    weights = {token: math.exp(logit / sampling.temperature) for token, logit in enumerate(LOGITS)}
    falling = sorted(weights, key=lambda token: (-LOGITS[token], token))
    if sampling.top_k:
        falling = falling[: sampling.top_k]
    total = sum(weights[token] for token in falling)
    kept: list[int] = []
    while sum(weights[token] for token in kept) < sampling.top_p * total and len(kept) < len(falling):
        kept.append(falling[len(kept)])
    total = sum(weights[token] for token in kept)
    return {token: weights[token] / total for token in kept}


def chi_square_z(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Pearson's statistic as a standard normal deviate, by E. B. Wilson and M. M. Hilferty (1931)."""
    statistic = sum((seen - due) ** 2 / due for seen, due in zip(observed, expected, strict=True))
    spread = 2 / (9 * (len(observed) - 1))
    return float((statistic / (len(observed) - 1)) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=1.0, seed=2),
        Sampling(temperature=1.5, seed=3),
        Sampling(temperature=1.0, top_k=5, seed=4),
        Sampling(temperature=1.0, top_p=0.8, seed=5),
        Sampling(temperature=1.5, top_k=7, top_p=0.6, seed=SEED_MAX),
    ],
    ids=str,
)
def test_draws_when_many_then_are_distributed_as_the_softmax_of_what_is_kept(sampling: Sampling) -> None:
    shares = kept_shares(sampling)
    counts = np.bincount(draw_many(LOGITS, sampling), minlength=len(LOGITS))
    assert set(np.flatnonzero(counts)) == set(shares)
    z = chi_square_z([float(counts[token]) for token in shares], [share * NUM_DRAWS for share in shares.values()])
    assert abs(z) < Z_LIMIT


def test_chi_square_when_the_temperature_is_a_little_off_then_notices() -> None:
    shares = kept_shares(Sampling(temperature=1.1))
    counts = np.bincount(draw_many(LOGITS, Sampling(temperature=1.0, seed=2)), minlength=len(LOGITS))
    z = chi_square_z([float(counts[token]) for token in shares], [share * NUM_DRAWS for share in shares.values()])
    assert z > Z_LIMIT


@pytest.mark.parametrize("vary", ["position", "seed"])
def test_noise_when_positions_or_seeds_are_neighbours_then_is_independent(vary: str) -> None:
    ids = torch.arange(NUM_DRAWS)
    for step in (1, 2, 2**32):
        one, other = (
            gumbel_noise(*((11, 3 + offset) if vary == "position" else (11 + offset, 3)), ids) for offset in (0, step)
        )
        # Its distribution function makes Gumbel noise uniform; the pairs then fill a 4 by 4 table evenly.
        cells = [torch.exp(-torch.exp(-noise)).mul(4).long() for noise in (one, other)]
        counts = torch.bincount(cells[0] * 4 + cells[1], minlength=16).tolist()
        assert abs(chi_square_z(counts, [NUM_DRAWS / 16] * 16)) < Z_LIMIT


def test_noise_when_token_seed_and_position_are_shifted_together_then_is_another() -> None:
    ids = torch.arange(64)
    held = {
        tuple(gumbel_noise(seed, position, ids + first).tolist())
        for seed in (0, 1, 2)
        for position in (0, 1, 2)
        for first in (0, 1)
    }
    assert len(held) == 18


def test_noise_when_computed_then_is_what_the_published_generator_gives() -> None:
    """SplitMix64 with the state that seed and position make yields the hashes in order of token id."""
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    assert mixed(gamma) == 0xE220A8397B1DCDAF  # first output of the published generator from state 0
    for seed, position in ((0, 0), (5, 9), (SEED_MAX, 2**31)):
        state = mixed((mixed((seed + gamma) & mask) + position * gamma) & mask)
        uniform = [((mixed((state + (token + 1) * gamma) & mask) >> 12) + 0.5) / 2**52 for token in range(50)]
        expected = torch.tensor([-math.log(-math.log(u)) for u in uniform], dtype=torch.float64)
        torch.testing.assert_close(gumbel_noise(seed, position, torch.arange(50)), expected, rtol=1e-12, atol=1e-12)


def test_noise_when_threads_or_neighbours_differ_then_is_equal_bit_for_bit() -> None:
    ids = torch.arange(100_003)
    whole = gumbel_noise(3, 4, ids)
    assert torch.isfinite(whole).all()
    torch.set_num_threads(2)
    assert torch.equal(gumbel_noise(3, 4, ids), whole)
    for first, last in ((0, 1), (1, 4), (99_990, 100_003)):
        torch.testing.assert_close(gumbel_noise(3, 4, ids[first:last]), whole[first:last], rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.8, seed=5), Sampling(1.2, top_k=40, seed=6), Sampling(1.0, top_p=0.9, seed=7)],
    ids=str,
)
def test_draw_when_in_any_batch_order_or_threads_then_is_what_it_is_alone(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 50_001, generator=generator) * 2
    positions = list(range(20, 28))
    alone = [choose(logits[row : row + 1], [sampling], [positions[row]])[0] for row in range(8)]
    assert choose(logits, [sampling] * 8, positions) == alone
    assert choose(logits.flip(0), [sampling] * 8, positions[::-1]) == alone[::-1]
    strangers = [sampling, GREEDY, Sampling(0.3, seed=1), sampling, GREEDY, sampling, Sampling(2.0, top_k=3), sampling]
    mixed = choose(logits, strangers, positions)
    assert [mixed[row] for row in (0, 3, 5, 7)] == [alone[row] for row in (0, 3, 5, 7)]
    assert [mixed[row] for row in (1, 4)] == logits[[1, 4]].argmax(-1).tolist()
    torch.set_num_threads(2)
    assert choose(logits, [sampling] * 8, positions) == alone


def test_draw_when_seed_or_position_differs_then_so_do_the_tokens() -> None:
    logits = torch.zeros(1, 10_000)
    seen = {
        choose(logits, [Sampling(1.0, seed=seed)], [position])[0]
        for seed in (0, 1, 2**32, SEED_MAX)
        for position in (0, 1, 500)
    }
    assert len(seen) == 12


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [(1, {2}), (2, {2, 6}), (3, {0, 2, 6}), (4, {0, 2, 6, 11}), (0, set(range(12))), (99, set(range(12)))],
)
def test_top_k_when_logits_tie_at_its_edge_then_keeps_the_lowest_ids(top_k: int, kept: set[int]) -> None:
    assert set(draw_many(LOGITS, Sampling(temperature=50.0, top_k=top_k), 400)) == kept


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, {0}), (0.25, {0}), (0.26, {0, 1}), (0.5, {0, 1}), (0.75, {0, 1, 2}), (0.76, {0, 1, 2, 3})],
)
def test_top_p_when_a_token_reaches_or_crosses_the_share_then_it_is_the_last_one_kept(
    top_p: float, kept: set[int]
) -> None:
    assert set(draw_many([1.0, 1.0, 1.0, 1.0], Sampling(temperature=3.0, top_p=top_p), 300)) == kept


def test_top_p_when_the_share_needs_more_than_the_head_then_keeps_as_many_as_it_says() -> None:
    logits = torch.zeros(1, 5000)
    drawn = choose(logits.expand(3000, -1), [Sampling(1.0, top_p=0.4)] * 3000, range(3000))
    assert max(drawn) < 2000
    assert max(drawn) > 1900


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 0.7, 1e300])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.99}], ids=str)
def test_draw_when_logits_are_masked_then_a_masked_token_is_never_drawn(
    temperature: float, options: dict[str, float]
) -> None:
    sampling = Sampling(temperature, int(options.get("top_k", 0)), options.get("top_p", 1.0), 3)
    drawn = set(draw_many([-math.inf, 3.0, -math.inf, 2.0, 1.0], sampling, 100))
    assert drawn <= {1, 3, 4}
    if temperature < 1e-20:
        assert drawn == {1}


def test_draw_when_one_token_alone_is_not_masked_then_is_that_one() -> None:
    logits = [-math.inf] * 4 + [-1e30] + [-math.inf] * 3
    assert set(draw_many(logits, Sampling(1.0, top_k=3, top_p=0.9), 50)) == {4}


def test_greedy_when_logits_tie_then_takes_the_lowest_id_beside_any_neighbour() -> None:
    logits = torch.tensor([LOGITS, LOGITS, [0.0] * len(LOGITS)])
    assert choose(logits, [GREEDY, Sampling(9.0, seed=4), GREEDY])[::2] == [2, 0]
    assert choose(logits, [GREEDY] * 3) == [2, 2, 0]
