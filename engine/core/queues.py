"""Every live request, and those of them that wait and that run, each in order of arrival."""

from bisect import insort

from engine.core.ids import Rid
from engine.core.request import Phase, Request

SETTLING = (Phase.RETRACTING, Phase.COMMITTED, Phase.ROLLING_BACK)
"""Phases of a request that gave its KV up and waits for its plans in flight."""


def _arrival(request: Request) -> int:
    return request.arrival


class Queues:
    """`live` holds a request from its acceptance until its KV is back where it belongs, ended or not."""

    def __init__(self) -> None:
        self.live: dict[Rid, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._arrivals = 0

    def next_arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals

    def wait(self, request: Request) -> None:
        """Queues a request by its arrival: a retracted one is back where it came from."""
        insort(self.waiting, request, key=_arrival)

    def run(self, request: Request) -> None:
        self.waiting.remove(request)
        insort(self.running, request, key=_arrival)

    def leave(self, request: Request) -> None:
        """Takes a request out of the queue that it stands in, if any."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        elif request.phase is Phase.RUNNING:
            self.running.remove(request)

    @property
    def num_new_waiting(self) -> int:
        """Waiting turns that never ran: only these count against the queue's limit."""
        return sum(request.retractions == 0 for request in self.waiting)

    @property
    def is_settling(self) -> bool:
        """Whether some request gave its KV up and waits for a plan in flight: its pages and its locks are coming."""
        return any(request.phase in SETTLING for request in self.live.values())

    @property
    def settling_pages(self) -> int:
        """Own pages of requests that gave them up and wait for a plan in flight."""
        return sum(len(request.kv.pages) for request in self.live.values() if request.phase in SETTLING)
