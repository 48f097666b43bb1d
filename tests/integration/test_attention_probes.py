"""The attention kernel by numbers that can be worked out by hand, and against a closed formula in float64."""

import itertools
import math

import pytest
import torch

from engine.executor.attention import ScoreOptions, soft_cap
from tests.kit.attention_rig import AttentionRig, Heads, Released, attend_in_float64, random_heads

PLAIN = ScoreOptions(scale=1.0)
LN_3 = math.log(3.0)
pytestmark = pytest.mark.usefixtures("one_thread")


def one_hot_heads(num_tokens: int, head_dim: int | None = None) -> Heads:
    """All scores are 0 and the value of position j is the unit vector j: an output is the weight of each position."""
    blank = torch.zeros(num_tokens, 1, head_dim or num_tokens)
    return Heads(blank, blank, torch.eye(num_tokens, head_dim or num_tokens)[:, None, :])


def even_weights(num_tokens: int, window: int) -> torch.Tensor:
    """Position i gives 1 / n to each of its last n = min(i + 1, window) positions."""
    weights = torch.zeros(num_tokens, num_tokens)
    for i in range(num_tokens):
        seen = [j for j in range(num_tokens) if i - window + 1 <= j <= i]
        weights[i, seen] = 1.0 / len(seen)
    return weights


def two_keys(scores: tuple[float, float], *, num_heads: int = 1) -> Heads:
    """Two tokens; the second's products with both keys are `scores`. Values are 1 and 0: an output is a weight."""
    blank = torch.zeros(2, num_heads, 8)
    queries, keys, values = blank.clone(), torch.zeros(2, 1, 8), torch.zeros(2, 1, 8)
    queries[1, :, 0] = 1.0
    keys[:, 0, 0] = torch.tensor(scores)
    values[0] = 1.0
    return Heads(queries, keys, values)


def run_alone(
    heads: Heads, options: ScoreOptions, window: int | None = None, chunk_len: int | None = None
) -> torch.Tensor:
    return AttentionRig([heads], page_size=4, window=window).run(0, chunk_len or len(heads), options)


def second_weight(heads: Heads, options: ScoreOptions) -> float:
    """Of the first key for the second token, in head 0."""
    return float(run_alone(heads, options)[1, 0, 0])


def require_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    """`out` is float32, of sums over at most 150 keys."""
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("released", Released)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk_len", [1, 3, 20])
def test_window_of_8_when_20_tokens_run_then_each_attends_to_itself_and_the_7_before_it(
    chunk_len: int, page_size: int, released: Released
) -> None:
    """NUM-01 (vllm-project/vllm#3385): values are one-hot, so that an output shows which positions were attended to."""
    rig = AttentionRig([one_hot_heads(20, 24)], page_size=page_size, window=8, released=released)
    out = rig.run(0, chunk_len, PLAIN)[:, 0]
    assert torch.equal(out[:, :20], even_weights(20, 8))
    assert not out[:, 20:].any()
    assert [int(row.nonzero()[0]) for row in out] == [0] * 8 + list(range(1, 13))


@pytest.mark.parametrize("released", [Released.PADDED, Released.READ])
@pytest.mark.parametrize("chunk_len", [1, 7, 200])
@pytest.mark.parametrize("window", [1, 63, 64, 65, 128, 199, 200, 1000])
def test_window_when_its_edge_crosses_blocks_of_64_then_it_has_exactly_its_positions(
    window: int, chunk_len: int, released: Released
) -> None:
    rig = AttentionRig([one_hot_heads(200)], page_size=16, window=window, released=released)
    assert torch.equal(rig.run(0, chunk_len, PLAIN)[:, 0], even_weights(200, window))


@pytest.mark.parametrize("chunk_len", [1, 7, 130])
def test_full_attention_when_run_then_each_token_attends_to_all_up_to_itself(chunk_len: int) -> None:
    out = run_alone(one_hot_heads(130), PLAIN, chunk_len=chunk_len)[:, 0]
    assert torch.equal(out, even_weights(130, 130))


@pytest.mark.parametrize("scale", [0.25, 1.0, 2.0])
def test_scale_when_given_then_scores_are_multiplied_by_it_once(scale: float) -> None:
    weight = second_weight(two_keys((LN_3 / scale, 0.0)), ScoreOptions(scale))
    assert weight == pytest.approx(0.75, abs=1e-6), "e^ln 3 to 1"


def test_soft_cap_when_5_and_scores_are_50_then_equals_the_capped_formula_and_not_the_plain_one() -> None:
    """NUM-07 (sgl-project/sglang#33915)."""
    weight = second_weight(two_keys((50.0, 0.0)), ScoreOptions(1.0, soft_cap=5.0))
    assert weight == pytest.approx(1 / (1 + math.exp(-5 * math.tanh(10.0))), abs=1e-7)
    assert 1 - weight > 6e-3, "without a cap it would be e^-50"


def test_soft_cap_when_scores_are_scaled_then_the_scale_comes_first() -> None:
    weight = second_weight(two_keys((8.0, 0.0)), ScoreOptions(0.25, soft_cap=2.0))
    assert weight == pytest.approx(1 / (1 + math.exp(-2 * math.tanh(1.0))), abs=1e-7)


def test_soft_cap_when_scores_are_of_size_50_then_equals_the_formula_in_float64() -> None:
    """NUM-07 (sgl-project/sglang#33915)."""
    heads = random_heads(3, 90, num_kv_heads=2, group_size=2, head_dim=16, spread=3.5)
    options = ScoreOptions(1.0, soft_cap=5.0)
    scores = torch.einsum("qhd,khd->hqk", heads.queries[:, ::2], heads.keys)
    assert 40 < scores.std() < 60
    out = run_alone(heads, options, chunk_len=7)
    require_close(out, attend_in_float64(heads, None, options))
    plain = attend_in_float64(heads, None, PLAIN)
    assert (out - plain).abs().max() > 0.5, "the cap matters"


def test_soft_cap_when_scores_are_beyond_all_bounds_then_it_is_the_cap_itself() -> None:
    assert soft_cap(torch.tensor([torch.inf, -torch.inf, 0.0, 3e38]), 5.0).tolist() == [5.0, -5.0, 0.0, 5.0]


@pytest.mark.parametrize("bad", [0.0, -5.0, math.nan, math.inf])
def test_score_options_when_a_number_is_none_that_a_score_can_have_then_refused(bad: float) -> None:
    """NUM-07 (sgl-project/sglang#33915), NUM-09 (NVIDIA/Megatron-LM#6590): no backend is given one to make sense of."""
    with pytest.raises(AssertionError, match="soft cap"):
        ScoreOptions(1.0, soft_cap=bad)
    with pytest.raises(AssertionError, match="scale"):
        ScoreOptions(bad)


@pytest.mark.parametrize("sinks", [torch.zeros(1), torch.zeros(3), torch.zeros(2, 1)])
def test_sinks_when_not_one_a_head_then_refused(sinks: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="sinks"):
        run_alone(two_keys((0.0, 0.0), num_heads=2), ScoreOptions(1.0, sinks=sinks))


def test_sinks_when_one_a_head_then_each_takes_its_part_and_gives_no_value() -> None:
    """Scores 0 and 0: two keys of weight 1 beside a sink of weight 2, 6, 14 or 30."""
    heads = two_keys((0.0, 0.0), num_heads=4)
    sinks = torch.tensor([2.0, 6.0, 14.0, 30.0]).log()
    for chunk_len in (1, 2):
        out = run_alone(heads, ScoreOptions(1.0, sinks=sinks), chunk_len=chunk_len)
        torch.testing.assert_close(out[0, :, 0], torch.tensor([1 / 3, 1 / 7, 1 / 15, 1 / 31]))
        torch.testing.assert_close(out[1, :, 0], torch.tensor([1 / 4, 1 / 8, 1 / 16, 1 / 32]))


@pytest.mark.parametrize("scale", [0.125, 8.0])
@pytest.mark.parametrize("cap", [None, 0.5, 100.0])
def test_sink_when_scores_are_scaled_and_capped_then_it_is_neither(scale: float, cap: float | None) -> None:
    """A sink of ln 6 beside two scores of 0, which no scale and no cap changes."""
    options = ScoreOptions(scale, soft_cap=cap, sinks=torch.tensor([6.0]).log())
    assert second_weight(two_keys((0.0, 0.0)), options) == pytest.approx(1 / 8, abs=1e-7)


def test_sink_when_far_above_all_scores_then_the_output_vanishes_and_far_below_then_it_changes_no_bit() -> None:
    heads = random_heads(4, 70, num_kv_heads=1, group_size=3, head_dim=16)
    plain = run_alone(heads, PLAIN)
    for low in (-1e30, -math.inf):
        assert torch.equal(run_alone(heads, ScoreOptions(1.0, sinks=torch.full((3,), low))), plain)
    above = run_alone(heads, ScoreOptions(1.0, sinks=torch.full((3,), 1e4)))
    assert not above.any(), "e^-10000 of it is left, and nothing is no number"


@pytest.mark.parametrize("chunk_len", [1, 2])
@pytest.mark.parametrize("group_size", [1, 2, 3, 4])
def test_query_heads_when_they_share_kv_heads_then_neighbours_share_one(group_size: int, chunk_len: int) -> None:
    """Two KV heads: head 0 has its large key at token 0, head 1 at token 1. Values tell the token and the KV head."""
    num_heads = 2 * group_size
    queries, keys, values = torch.zeros(2, num_heads, 8), torch.zeros(2, 2, 8), torch.zeros(2, 2, 8)
    queries[:, :, 0] = 1.0
    for kv_head in (0, 1):
        keys[kv_head, kv_head, 0] = 200.0
        for token in (0, 1):
            values[token, kv_head, 2 * token + kv_head] = 1.0
    out = run_alone(Heads(queries, keys, values), PLAIN, chunk_len=chunk_len)[1]
    said = [int(head.argmax()) for head in out]
    assert said == [0] * group_size + [3] * group_size, "e^-200 of the other key is 0"
    assert torch.equal(out.sum(-1), torch.ones(num_heads))


@pytest.mark.parametrize(
    ("window", "cap", "has_sinks", "group_size"),
    list(itertools.product([None, 1, 9, 64, 70], [None, 5.0], [False, True], [1, 2, 3, 4, 8])),
)
def test_attention_when_options_are_combined_then_equals_the_formula_in_float64(
    window: int | None, cap: float | None, has_sinks: bool, group_size: int
) -> None:
    sequences = [
        random_heads(seed, length, num_kv_heads=2, group_size=group_size, head_dim=16, spread=1.5)
        for seed, length in enumerate((150, 37, 8))
    ]
    sinks = torch.linspace(-2.0, 4.0, 2 * group_size) if has_sinks else None
    options = ScoreOptions(0.3, soft_cap=cap, sinks=sinks)
    rig = AttentionRig(sequences, page_size=5, window=window, released=Released.STALE)
    parts: list[list[torch.Tensor]] = [[], [], []]
    for lens in ((70, 1, 5), (9, 0, 3), (1, 30, 0), (64, 6, 0), (6, 0, 0)):
        for place, out in enumerate(rig.step(lens, options)):
            parts[place] += [out] if len(out) else []
    for heads, told in zip(sequences, parts, strict=True):
        out = torch.cat(told)
        assert out.isfinite().all()
        require_close(out, attend_in_float64(heads, window, options))


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("window", [None, 9])
def test_rows_when_a_stranger_is_not_finite_then_nobody_else_changes_in_any_bit(
    window: int | None, spoilt: float
) -> None:
    """Heads in groups of 3, so that every tile has rows that only pad: 3 of 8 in a decode, 3 · 5 of 24 in a chunk."""
    options = ScoreOptions(0.3, soft_cap=4.0, sinks=torch.tensor([0.0, 9.0, -9.0]))
    own = random_heads(1, 75, num_kv_heads=1, group_size=3, head_dim=16)
    bad = Heads(*(torch.full_like(each, spoilt) for each in (own.queries, own.keys, own.values)))
    alone = AttentionRig([own], page_size=4, window=window).run(0, 5, options)
    beside = AttentionRig([bad, own, bad], page_size=4, window=window)
    steps = [beside.step((count, 5, 1), options) for count in (1, 5, 2, 1, 7, 9, 1, 1, 1, 5, 8, 3, 1, 1, 1)]
    assert not torch.cat([step[0] for step in steps]).isfinite().any()
    assert torch.equal(torch.cat([step[1] for step in steps]), alone)
    assert alone.isfinite().all()
