"""Which turns are alive, and how long each took: until its first token, for each later one, and in all."""

from dataclasses import dataclass

from engine.core.commands import AbortReason
from engine.core.events import CommitRequested, TurnAccepted, TurnEnded
from engine.core.ids import Rid
from telemetry.metrics.buckets import BucketCounts
from telemetry.metrics.catalogue import find_metric
from telemetry.names import MetricName


@dataclass(slots=True)
class _Turn:
    accepted_s: float
    first_token_s: float | None = None
    generated_s: float | None = None
    """When it had all its tokens."""
    is_running: bool = False


class TurnTimes:
    """Told on one thread; its bucket counts may be read on any. A turn whose acceptance was not told is not known."""

    def __init__(self) -> None:
        self._turns: dict[Rid, _Turn] = {}
        duration = find_metric(MetricName.REQUEST_DURATION)
        self.first_token = BucketCounts(find_metric(MetricName.TIME_TO_FIRST_TOKEN).buckets)
        self.output_token = BucketCounts(find_metric(MetricName.TIME_PER_OUTPUT_TOKEN).buckets)
        self.duration = BucketCounts(duration.buckets)
        """Of turns that finished."""
        self.broken_off = {reason: BucketCounts(duration.buckets) for reason in AbortReason}
        self.num_waiting = self.num_running = 0

    def accepted(self, event: TurnAccepted, now_s: float) -> None:
        self._turns[event.rid] = _Turn(now_s)
        self.num_waiting += 1

    def set_running(self, rid: Rid, is_running: bool) -> bool:
        """False for a turn that is not known."""
        turn = self._turns.get(rid)
        if turn is None:
            return False
        turn.is_running = is_running
        self._count_running(1 if is_running else -1)
        return True

    def first_sampled(self, rid: Rid, now_s: float) -> None:
        turn = self._turns.get(rid)
        if turn is not None:
            turn.first_token_s = now_s
            self.first_token.add(now_s - turn.accepted_s)

    def commit_requested(self, event: CommitRequested, now_s: float) -> None:
        turn = self._turns.get(event.rid)
        if turn is not None:
            turn.generated_s = now_s

    def ended(self, event: TurnEnded, now_s: float) -> bool:
        """False for a turn that is not known."""
        turn = self._turns.pop(event.rid, None)
        if turn is None:
            return False
        if turn.is_running:
            self.num_running -= 1
        else:
            self.num_waiting -= 1
        later_tokens = event.usage.output_len - 1
        if turn.first_token_s is not None and later_tokens > 0:
            generated_s = now_s if turn.generated_s is None else turn.generated_s
            self.output_token.add((generated_s - turn.first_token_s) / later_tokens)
        outcome = event.outcome
        buckets = self.broken_off[outcome] if isinstance(outcome, AbortReason) else self.duration
        buckets.add(now_s - turn.accepted_s)
        return True

    def _count_running(self, step: int) -> None:
        self.num_running += step
        self.num_waiting -= step
