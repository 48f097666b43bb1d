"""The angles of rotary embedding, against the published formulas written out pair by pair in float64."""

import math

import pytest
import torch

from engine.executor.model_config import UnsupportedModelError
from engine.executor.rope import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RopeSpec,
    RotaryTable,
    YarnScaling,
    inverse_freq,
    rotate,
    yarn_attention_factor,
)

THETA, DIM, CONTEXT_LEN = 150000.0, 64, 256
LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=8192)
GPT_OSS = YarnScaling(
    factor=32.0, original_context_len=4096, attention_factor=yarn_attention_factor(32.0), is_truncated=False
)
QWEN3 = YarnScaling(factor=4.0, original_context_len=32768, attention_factor=yarn_attention_factor(4.0))
NARROW = YarnScaling(factor=2.5, original_context_len=64, attention_factor=0.8, beta_fast=3.0, beta_slow=2.9)
STEP = YarnScaling(factor=8.0, original_context_len=4096, attention_factor=1.0, beta_fast=2.0, beta_slow=2.0)
SCALINGS = [None, LinearScaling(4.0), LLAMA3, GPT_OSS, QWEN3, NARROW, STEP]


def expected_freq(scaling: RopeScaling | None, pair: int, theta: float, dim: int) -> float:
    """Radians a position."""
    plain = math.pow(theta, -2 * pair / dim)
    match scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling():
            turns = scaling.original_context_len * plain / (2 * math.pi)
            share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            share = min(max(share, 0.0), 1.0)
            return share * plain + (1 - share) * plain / scaling.factor
        case YarnScaling():
            # The pair that turns n times in the original context L: L · theta^(-2·pair / dim) = 2 · pi · n.
            first, last = (
                math.log(scaling.original_context_len / (2 * math.pi * turns), theta) * dim / 2
                for turns in (scaling.beta_fast, scaling.beta_slow)
            )
            if scaling.is_truncated:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, dim - 1)
            share = float(pair > first) if first == last else min(max((pair - first) / (last - first), 0.0), 1.0)
            return share * plain / scaling.factor + (1 - share) * plain


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(("theta", "dim"), [(THETA, DIM), (10000.0, 16), (1e6, 128)])
def test_table_when_scaled_then_is_that_of_the_published_formula(
    scaling: RopeScaling | None, theta: float, dim: int
) -> None:
    spec = RopeSpec(dim, theta, CONTEXT_LEN, scaling)
    expected = torch.tensor([expected_freq(scaling, pair, theta, dim) for pair in range(dim // 2)], dtype=torch.float64)
    torch.testing.assert_close(inverse_freq(spec).double(), expected, rtol=2e-6, atol=0)
    cos, sin = RotaryTable(spec).at(torch.arange(CONTEXT_LEN))
    angles = torch.outer(torch.arange(CONTEXT_LEN, dtype=torch.float64), expected).unsqueeze(1)
    length = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
    torch.testing.assert_close(cos.double(), length * angles.cos(), rtol=0, atol=2e-4)
    torch.testing.assert_close(sin.double(), length * angles.sin(), rtol=0, atol=2e-4)


def test_yarn_when_pairs_turn_often_or_seldom_then_are_kept_or_slowed_to_the_bit() -> None:
    plain = inverse_freq(RopeSpec(DIM, THETA, CONTEXT_LEN))
    scaled = inverse_freq(RopeSpec(DIM, THETA, CONTEXT_LEN, GPT_OSS))
    turns = GPT_OSS.original_context_len * plain / (2 * math.pi)
    is_often, is_seldom = turns > GPT_OSS.beta_fast, turns < GPT_OSS.beta_slow
    assert is_often.sum() == 9  # pairs 0 to 8: the 32 turns lie between pair 8 and 9
    assert is_seldom.sum() == 14
    assert torch.equal(scaled[is_often], plain[is_often])
    assert torch.equal(scaled[is_seldom], plain[is_seldom] / 32)
    between = ~is_often & ~is_seldom
    assert ((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 32)).all()


@pytest.mark.parametrize(
    ("factor", "mscale", "mscale_all_dim", "expected"),
    [
        (32.0, None, None, 1.3465735902799727),
        (4.0, None, None, 1.1386294361119891),
        (1.0, None, None, 1.0),
        (0.5, 2.0, 1.0, 1.0),
        (40.0, 1.0, 1.0, 1.0),
        (40.0, 0.707, 1.0, 1.2608037774058554 / 1.3688879454113936),
        (40.0, 0.707, None, 1.3688879454113936),
        (40.0, 0.707, 0.0, 1.3688879454113936),
    ],
)
def test_yarn_attention_factor_when_computed_then_is_the_published_one(
    factor: float, mscale: float | None, mscale_all_dim: float | None, expected: float
) -> None:
    assert yarn_attention_factor(factor, mscale, mscale_all_dim) == pytest.approx(expected, rel=1e-9)


def test_scores_when_yarn_has_an_attention_factor_then_grow_by_its_square() -> None:
    heads = torch.randn(1, 2, DIM)
    plain, longer = (
        rotate(heads, *RotaryTable(RopeSpec(DIM, THETA, CONTEXT_LEN, scaling)).at(torch.tensor([0])))
        for scaling in (None, GPT_OSS)
    )
    torch.testing.assert_close((longer * longer).sum(), (plain * plain).sum() * 1.3465735902799727**2)


def test_yarn_when_often_is_less_than_seldom_then_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"beta_fast 1\.0 is less than its beta_slow 2\.0"):
        YarnScaling(4.0, 4096, 1.0, beta_fast=1.0, beta_slow=2.0)


def test_spec_when_an_odd_number_of_elements_turns_then_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="even head_dim, not 7"):
        RopeSpec(7, THETA, CONTEXT_LEN)
