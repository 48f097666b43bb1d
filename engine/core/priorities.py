"""Who comes first: the rank of a turn, from its arrival and its priority. Pure."""

from engine.core.errors import Refusal, RefusalReason

PRIORITY_MAX = 1000

FIRST = -(2**62)
"""Before whatever arrival and priority can give."""

Rank = tuple[int, int]
"""Lower goes first. Of equals the earlier arrival."""


def check_priority(priority: int) -> None:
    """Refused: PRIORITY_INVALID."""
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        message = f"priority must be from {-PRIORITY_MAX} to {PRIORITY_MAX}, not {priority}"
        raise Refusal(RefusalReason.PRIORITY_INVALID, message, field="priority", value=priority, limit=PRIORITY_MAX)


def rank_of(arrival: int, priority: int, priority_arrivals: int) -> Rank:
    """A turn counts as having arrived `priority_arrivals` turns earlier for each level of its priority.

    So it overtakes a bounded number of others and nobody starves, whatever the priorities of those that come.
    """
    return arrival - priority * priority_arrivals, arrival


def last_attempt_rank(rank: Rank) -> Rank:
    """Before all others that are not on their last attempt, and among those by arrival."""
    _, arrival = rank
    return FIRST, arrival
