"""Every live request, and those of them that wait and that run, each in order of rank."""

from bisect import insort
from collections.abc import Mapping

from engine.core.ids import Rid
from engine.core.priorities import Rank
from engine.core.request import SETTLING, Lane, Phase, Request


def _rank(request: Request) -> Rank:
    return request.rank


class Queues:
    """`live` holds a request from its acceptance until its KV is back where it belongs, ended or not.

    Waiting turns stand in two lanes. The lane that was served fewer tokens goes first; one that was empty starts level
    with the other, so that nobody saves up a right to shut others out.
    """

    def __init__(self) -> None:
        self.live: dict[Rid, Request] = {}
        self.running: list[Request] = []
        self._lanes: dict[Lane, list[Request]] = {lane: [] for lane in Lane}
        self._served = dict.fromkeys(Lane, 0)
        self._arrivals = 0

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Those that wait, lane by lane."""
        return tuple(request for lane in self._lanes.values() for request in lane)

    def next_arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals

    def wait(self, request: Request) -> None:
        """Queues a request by its rank: a retracted one is back where it came from."""
        lane = self._lanes[request.lane]
        if not lane:
            self._served[request.lane] = max(self._served.values())
        insort(lane, request, key=_rank)

    def next_waiting(self, skipped: Mapping[Lane, int]) -> Request | None:
        """The first request behind the `skipped` first ones of its lane, in the lane that was served least.

        Of lanes that were served alike, the one whose request has the lower rank.
        """
        heads = [lane[skipped[name]] for name, lane in self._lanes.items() if skipped[name] < len(lane)]
        return min(heads, key=lambda request: (self._served[request.lane], request.rank), default=None)

    def serve(self, request: Request, num_tokens: int) -> None:
        """So many tokens of its lane are computed now."""
        self._served[request.lane] += num_tokens

    def run(self, request: Request) -> None:
        self._lanes[request.lane].remove(request)
        insort(self.running, request, key=_rank)

    def leave(self, request: Request) -> None:
        """Takes a request out of the queue that it stands in, if any."""
        if request.phase is Phase.WAITING:
            self._lanes[request.lane].remove(request)
        elif request.phase is Phase.RUNNING:
            self.running.remove(request)

    def num_new_waiting(self, lane: Lane) -> int:
        """Waiting turns that never ran: only these count against the queue's limit."""
        return sum(request.retractions == 0 for request in self._lanes[lane])

    @property
    def is_settling(self) -> bool:
        """Whether some request gave its KV up and waits for a plan in flight: its pages and its locks are coming."""
        return any(request.phase in SETTLING for request in self.live.values())
