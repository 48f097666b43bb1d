"""A core that retracts a turn when a test says so."""

from engine.core.core import Core
from engine.core.ids import Rid
from engine.core.request import Phase


class RetractingCore(Core):
    """Adds one verb to the core. What follows it is the core's own: the way out, settling, coming in again."""

    def retract(self, rid: Rid) -> bool:
        """Takes a running turn's KV as the scheduler does for the sake of an older turn. False: it does not run.

        To be called where a plan may be made: in the core itself retractions happen while a plan is made.
        """
        request = self._queues.live.get(rid)
        if request is None or request.phase is not Phase.RUNNING:
            return False
        self._endings.retract(request)
        return True
