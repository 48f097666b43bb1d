"""Where a text first completes one of several stop strings, and how little must be held back until that is known."""

from collections.abc import Sequence


class StopMatcher:
    """Reads a text character by character; however it is split over calls, the outcome is the same.

    The first stop string to be completed ends the text; of several that end at one character the longest. Until then
    the longest end of the text that a stop string begins with is held back, and nothing else. One automaton for each
    stop string (Knuth, Morris and Pratt, 1977) keeps the cost at O(stop strings) a character, whatever their lengths.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        assert all(stop_strings), "an empty stop string would end every text"
        self._automata = tuple(_Automaton(stop) for stop in stop_strings)
        self._held = ""
        self.found: str | None = None
        """The stop string that was completed."""

    def is_found(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """The text that became certain. After a stop string was found: what was before it, and then nothing more."""
        if not self._automata:
            return text
        if self.found is not None:
            return ""
        seen = self._held + text
        for end in range(len(self._held), len(seen)):
            complete = [automaton.stop for automaton in self._automata if automaton.step(seen[end])]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return seen[: end + 1 - len(self.found)]
        certain = len(seen) - max(automaton.matched for automaton in self._automata)
        self._held = seen[certain:]
        return seen[:certain]

    def flush(self) -> str:
        """The end: what was held back was no stop string after all."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How much of one stop string the text ends with."""

    __slots__ = ("_fallbacks", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallbacks = _fallbacks_of(stop)

    def step(self, character: str) -> bool:
        """Takes one more character. True when the stop string is complete."""
        matched = self.matched
        while matched and self.stop[matched] != character:
            matched = self._fallbacks[matched - 1]
        self.matched = matched + 1 if self.stop[matched] == character else 0
        return self.matched == len(self.stop)


def _fallbacks_of(stop: str) -> list[int]:
    """For each beginning of `stop`: the length of its longest proper end that `stop` also begins with."""
    fallbacks = [0] * len(stop)
    matched = 0
    for end in range(1, len(stop)):
        while matched and stop[end] != stop[matched]:
            matched = fallbacks[matched - 1]
        if stop[end] == stop[matched]:
            matched += 1
        fallbacks[end] = matched
    return fallbacks
