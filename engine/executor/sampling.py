"""Chooses the next tokens from logits: the highest, or a draw whose randomness is a function of seed and position.

A draw is the highest of `logit / temperature + noise` among the tokens that top_k and top_p leave, with standard Gumbel
noise: that is a sample of their softmax (E. J. Gumbel, 1954). The noise of a token is a hash of (seed, position, token
id), SplitMix64's mixing function (G. Steele, D. Lea, C. Flood: "Fast splittable pseudorandom number generators", 2014):
there is no generator whose state could depend on what was drawn before, or for whom.

Rows are drawn one by one, in float64: the last bits of a library's exp and log may depend on where in a tensor a number
stands, and so on the batch. int64 stands for uint64 throughout: products wrap alike, and shifts are masked.
"""

from collections.abc import Callable

import torch

from engine.executor.batch import Draws

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1
_UNIFORM_BITS = 52
"""So that (bits + ½) / 2⁵² is exact in float64 and neither 0 nor 1."""
_HEAD_LEN = 1024
"""top_p looks at so many of the highest logits before it sorts them all: few distributions are flatter."""
_BLOCK_LEN = 32768
"""Torch gives no part of so few elements to a second thread."""


@torch.inference_mode()
def choose_tokens(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """The next token of each row of `logits` [num_samples, vocab_size] float32: [num_samples] int64.

    Rows that `draws` does not name are greedy; equals go to the lowest id. Logits may be -inf, not NaN. A draw passes
    over the vocabulary (1 ms for 50,000 tokens on one thread); a greedy row costs nothing beside its argmax.
    """
    chosen = logits.argmax(dim=-1)
    for draw, place in enumerate(draws.places):
        chosen[place] = _draw(logits[place], draws, draw)
    return chosen


def gumbel_noise(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise of each of `token_ids` [n] int64: [n] float64, finite.

    `seed` is from 0 to 2⁶³ - 1, `position` that of the token to be chosen.
    """
    key = _mix_number(_mix_number(seed + _GAMMA) + position * _GAMMA)
    bits = _mix(token_ids.add(1).mul_(_signed(_GAMMA)).add_(_signed(key)))
    uniform = _shift_right(bits, 64 - _UNIFORM_BITS).double().add_(0.5).mul_(2.0**-_UNIFORM_BITS)
    return _by_blocks(lambda block: block.log().neg_().log_().neg_(), uniform)


def _draw(logits: torch.Tensor, draws: Draws, draw: int) -> torch.Tensor:
    """One draw from `logits` [vocab_size]: its id, a scalar."""
    logits = logits.double()
    highest = logits.max()
    # Where a logit is the highest its distance is 0 by definition: -inf from -inf would be NaN.
    scaled = torch.where(logits == highest, 0.0, (logits - highest) / float(draws.temperatures[draw]))
    ids = torch.arange(len(logits), device=logits.device)
    top_k, top_p = int(draws.top_ks[draw]), float(draws.top_ps[draw])
    if 0 < top_k < len(logits):
        ids = _highest(logits, top_k)
    if top_p < 1:
        ids = ids[_within_share(logits[ids], scaled[ids], top_p)]
    noise = gumbel_noise(int(draws.seeds[draw]), int(draws.positions[draw]), ids)
    return ids[scaled[ids].add_(noise).argmax()]


def _highest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Where the `count` highest of `values` [n] stand, in rising order; of equals at the edge the first."""
    edge = values.topk(count).values[-1]
    above = (values > edge).nonzero().flatten()
    at_edge = (values == edge).nonzero().flatten()[: count - len(above)]
    return torch.cat((above, at_edge)).sort().values


def _within_share(logits: torch.Tensor, scaled: torch.Tensor, share: float) -> torch.Tensor:
    """Where the most probable tokens stand that together just reach `share`, in rising order."""
    weights = _by_blocks(torch.exp, scaled)
    wanted = share * sum(float(block.sum()) for block in weights.split(_BLOCK_LEN))
    head = _highest(logits, min(_HEAD_LEN, len(logits)))
    if float(weights[head].sum()) < wanted:
        head = torch.arange(len(logits), device=logits.device)
    falling = head[logits[head].argsort(descending=True, stable=True)]
    reached = weights[falling].cumsum(0)
    count = int((reached[:-1] < wanted).sum()) + 1
    return falling[:count].sort().values


def _by_blocks(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function` of each element of `x` [n], computed alike whatever the number of threads."""
    return torch.cat([function(block) for block in x.split(_BLOCK_LEN)])


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer of each element of `x`, which it overwrites."""
    x = x.bitwise_xor_(_shift_right(x, 30)).mul_(_signed(_MIX_1))
    x = x.bitwise_xor_(_shift_right(x, 27)).mul_(_signed(_MIX_2))
    return x.bitwise_xor_(_shift_right(x, 31))


def _mix_number(x: int) -> int:
    """The same of one number, modulo 2⁶⁴."""
    x &= _MASK
    x = (x ^ (x >> 30)) * _MIX_1 & _MASK
    x = (x ^ (x >> 27)) * _MIX_2 & _MASK
    return x ^ (x >> 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift that brings in zeros: int64's own brings in the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    """The int64 of the same 64 bits."""
    return x - 2**64 if x >= 2**63 else x
