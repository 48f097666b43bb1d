"""When all is told again because somebody came too late for what is kept: everybody hears it, so not often."""

RENEW_S = 10.0
"""At least, from the end of a whole to the begin of one for late readers."""
RENEW_TIMES = 10.0
"""That pause is at least so many times as long as the whole took: what is whole at nobody for long costs little."""


class Renewal:
    """For one thread. Each whole serves all who were late before it began, whatever it was told for."""

    def __init__(self) -> None:
        self._is_wanted = False
        self._is_asked = False
        self._not_before_s: float | None = None

    def note_late(self) -> None:
        """Somebody wants what is not kept any more."""
        self._is_wanted = not self._is_asked

    def wait_s(self, now_s: float) -> float | None:
        """Until one is due; None: none is wanted."""
        if not self._is_wanted:
            return None
        return 0.0 if self._not_before_s is None else max(0.0, self._not_before_s - now_s)

    def take_due(self, now_s: float) -> bool:
        """Whether to ask for a whole now. Says so once."""
        if self.wait_s(now_s) != 0.0:
            return False
        self._is_wanted, self._is_asked = False, True
        return True

    def note_told(self, took_s: float, now_s: float) -> None:
        """A whole was told."""
        self._is_wanted = self._is_asked = False
        self._not_before_s = now_s + max(RENEW_S, RENEW_TIMES * took_s)
