"""Mixtures of experts: who is picked, how a token's experts are summed, and that no row minds its neighbours."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from engine.executor.batch import PoolGeometry
from engine.executor.decoder import StepContext
from engine.executor.kv_storage import KvStorage
from engine.executor.layers.moe import (
    Expert,
    MixtureOfExperts,
    MoeSpec,
    Scoring,
    share_of_all,
    share_of_picked,
    softmax_of_picked,
)
from engine.executor.linear import Linear, pad_rows
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.norm import silu_and_mul

HIDDEN, SIZE = 24, 40
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Weights:
    """The same as the mixture holds, to compute by hand."""

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads torch has; as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_mixture(num_experts: int, top_k: int, score: Scoring = share_of_picked) -> tuple[MixtureOfExperts, Weights]:
    torch.manual_seed(0)
    weights = Weights(
        torch.randn(num_experts, HIDDEN),
        torch.randn(num_experts, 2 * SIZE, HIDDEN) / HIDDEN**0.5,
        torch.randn(num_experts, HIDDEN, SIZE) / SIZE**0.5,
    )
    pairs = zip(weights.gate_up, weights.down, strict=True)
    experts = tuple(Expert(Linear(gate_up), Linear(down)) for gate_up, down in pairs)
    return MixtureOfExperts(MoeSpec(num_experts, top_k, SIZE, score), Linear(weights.router), experts), weights


def step_of(num_tokens: int) -> StepContext:
    config = ModelConfig("tiny", "tiny", 8, HIDDEN, 1, 8, (0,), None, kv_layers=())
    storage = KvStorage(config, PoolGeometry(page_size=4, pool_pages=2, num_rows=2))
    return StepContext(torch.arange(num_tokens), storage, {}, None)


def mix(mixture: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    return mixture(pad_rows(x), step_of(len(x)))[: len(x)]


def by_hand(weights: Weights, x: torch.Tensor, top_k: int) -> torch.Tensor:
    """In float64, expert by expert of each token: the softmax of the highest logits weighs SiLU gates."""
    rows = []
    for row in x.double():
        logits = weights.router.double() @ row
        picked = sorted(range(len(logits)), key=lambda expert: -float(logits[expert]))[:top_k]
        shares = [math.exp(float(logits[expert])) for expert in picked]
        mixed = torch.zeros(HIDDEN, dtype=torch.float64)
        for expert, share in zip(picked, shares, strict=True):
            gate, up = (weights.gate_up[expert].double() @ row).chunk(2)
            inner = gate / (1 + torch.exp(-gate)) * up
            mixed += share / sum(shares) * (weights.down[expert].double() @ inner)
        rows.append(mixed)
    return torch.stack(rows)


@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 1), (4, 2), (5, 5), (64, 8)])
@pytest.mark.parametrize("score", [share_of_picked, softmax_of_picked])
def test_mixture_when_run_then_is_the_weighted_sum_of_the_experts_picked(
    num_experts: int, top_k: int, score: Scoring
) -> None:
    mixture, weights = make_mixture(num_experts, top_k, score)
    x = torch.randn(37, HIDDEN)
    torch.testing.assert_close(mix(mixture, x).double(), by_hand(weights, x, top_k), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("score", "weights"),
    [
        (share_of_all, [5 / 8, 2 / 8]),
        (share_of_picked, [5 / 7, 2 / 7]),
        (softmax_of_picked, [5 / 7, 2 / 7]),
    ],
)
def test_score_when_logits_are_logarithms_then_weights_are_their_shares(score: Scoring, weights: list[float]) -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0], [2.0, 1.0, 5.0]]).log()
    got, picked = score(logits, 2)
    torch.testing.assert_close(got, torch.tensor([weights, weights]))
    assert picked.tolist() == [[1, 2], [2, 0]]


@pytest.mark.parametrize("score", [share_of_all, share_of_picked, softmax_of_picked])
def test_score_when_logits_are_huge_then_weights_are_finite(score: Scoring) -> None:
    got, picked = score(torch.tensor([[3e38, -3e38, 0.0, 1.0]]), 2)
    assert got.tolist() == [[1.0, 0.0]]
    assert picked[0, 0] == 0


@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 2), (16, 5)])
@pytest.mark.parametrize("score", [share_of_all, share_of_picked, softmax_of_picked])
def test_row_when_in_batches_of_other_sizes_then_has_the_same_bits(
    threads: int, num_experts: int, top_k: int, score: Scoring
) -> None:
    mixture, _ = make_mixture(num_experts, top_k, score)
    x = torch.randn(66, HIDDEN)
    whole = mix(mixture, x)
    for batch_size in (1, 3, 7, 8, 33, 65):
        parts = [mix(mixture, part) for part in x.split(batch_size)]
        assert torch.equal(torch.cat(parts), whole), f"batches of {batch_size}, {threads} threads"
    order = torch.randperm(len(x))
    assert torch.equal(mix(mixture, x[order]), whole[order])


def test_experts_when_logits_are_equal_then_are_the_same_in_every_batch() -> None:
    mixture, weights = make_mixture(8, 3)
    tied = MixtureOfExperts(mixture.spec, Linear(torch.zeros_like(weights.router)), mixture.experts)
    row = torch.randn(1, HIDDEN)
    alone = mix(tied, row)
    assert torch.equal(mix(tied, row.expand(50, -1).contiguous()), alone.expand(50, -1))


def test_padding_rows_when_they_are_no_numbers_then_reach_no_token_and_no_expert() -> None:
    mixture, _ = make_mixture(4, 2)
    x = torch.randn(8, HIDDEN)
    expected = mixture(x, step_of(8))[:5]
    x[5:] = torch.nan
    assert torch.equal(mixture(x, step_of(5))[:5], expected)

    def checked(gate_up: torch.Tensor) -> torch.Tensor:
        assert gate_up.isfinite().all()
        return silu_and_mul(gate_up)

    experts = tuple(Expert(expert.gate_up, expert.down, checked) for expert in mixture.experts)
    mixed = MixtureOfExperts(mixture.spec, mixture.router, experts)(x, step_of(5))
    assert torch.equal(mixed, pad_rows(expected))


def test_spec_when_a_token_passes_more_experts_than_there_are_then_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="a token passes 5 experts, of which there are 4"):
        MoeSpec(4, 5, SIZE, share_of_picked)
