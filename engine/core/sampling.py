"""How a turn chooses its tokens, as plain values. The choosing itself is the executor's."""

import math
from dataclasses import dataclass

from engine.core.errors import Refusal, RefusalReason

SEED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature, then top_k, then top_p, as most servers order them. The default is greedy.

    A sampled token depends on the logits, on these values and on its position in the sequence, and on nothing else: not
    on the batch, the session, or how often the turn was retracted.
    """

    temperature: float = 0.0
    """0 is greedy: the highest logit, the lowest id among equals."""
    top_k: int = 0
    """Only the `top_k` highest logits may be chosen; 0 for all."""
    top_p: float = 1.0
    """Only the most probable tokens that together reach this share, the one that crosses it included; 1 for all."""
    seed: int = 0
    """Resolved by the shell: a turn without a seed of its own is given a random one."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()


def check_sampling(sampling: Sampling) -> None:
    """Refused: SAMPLING_INVALID, naming field, value and limit."""
    temperature, top_p = sampling.temperature, sampling.top_p
    if not (math.isfinite(temperature) and temperature >= 0):
        _refuse("temperature", temperature, "must be a finite number, at least 0")
    if not 0 < top_p <= 1:
        _refuse("top_p", top_p, "must be above 0 and at most 1")
    if sampling.top_k < 0:
        _refuse("top_k", sampling.top_k, "must be at least 0")
    if not 0 <= sampling.seed <= SEED_MAX:
        _refuse("seed", sampling.seed, f"must be from 0 to {SEED_MAX}")


def _refuse(field: str, value: float, rule: str) -> None:
    reason = RefusalReason.SAMPLING_INVALID
    raise Refusal(reason, f"{field} {rule}, not {value}", field=field, value=str(value))
