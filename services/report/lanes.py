"""What became of each session's KV: states that follow each other, out of the facts that the server kept."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.client.history import SessionFact

UNKNOWN = "unknown"
"""The session was open before the first fact that is known of it."""
NO_KV = "none"
GONE = "released"
_STATES = {"empty": NO_KV}
"""Other words for a state."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The session's KV was in this state; `tokens` as when it came into it, None when that is not known."""

    start_s: float
    end_s: float
    state: str
    tokens: int | None

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Lane:
    """One session: its states without gaps while it is open, and all that is known of it, oldest first."""

    number: int
    session_id: str
    segments: tuple[Segment, ...]
    facts: tuple[SessionFact, ...]

    @property
    def num_turns(self) -> int:
        """Turns that ended."""
        return sum(fact.what == "turn_ended" for fact in self.facts)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes that are shown, in the order in which their sessions were opened, and how many are not."""

    shown: tuple[Lane, ...]
    num_left_out: int


def build_lanes(facts: Iterable[SessionFact], start_s: float, end_s: float, lanes_max: int) -> Lanes:
    """Of more than `lanes_max` sessions the most active ones are shown: those with the most facts."""
    by_session: dict[int, list[SessionFact]] = {}
    for fact in facts:
        by_session.setdefault(fact.session_number, []).append(fact)
    activity = Counter({number: len(told) for number, told in by_session.items()})
    chosen = sorted(number for number, _ in activity.most_common(lanes_max))
    lanes = tuple(_build_lane(number, by_session[number], start_s, end_s) for number in chosen)
    return Lanes(lanes, len(by_session) - len(lanes))


def _build_lane(number: int, facts: Sequence[SessionFact], start_s: float, end_s: float) -> Lane:
    segments = tuple(segment for segment in _follow_states(facts, start_s, end_s) if segment.length_s > 0)
    return Lane(number, facts[-1].session_id, segments, tuple(facts))


@dataclass(slots=True)
class _Track:
    """Cuts time into segments, inside the span."""

    start_s: float
    end_s: float
    segments: list[Segment] = field(default_factory=list)
    state: str | None = None
    """None: not open yet, or not any more."""
    tokens: int | None = None
    since_s: float = 0.0

    def change(self, time_s: float, state: str | None, tokens: int | None) -> None:
        begin, end = max(self.since_s, self.start_s), min(time_s, self.end_s)
        if self.state is not None and end > begin:
            self.segments.append(Segment(begin, end, self.state, self.tokens))
        self.state, self.tokens, self.since_s = state, tokens, time_s


def _follow_states(facts: Sequence[SessionFact], start_s: float, end_s: float) -> list[Segment]:
    track = _Track(start_s, end_s)
    is_new = facts[0].what == "opened"
    track.change(facts[0].time_s if is_new else start_s, NO_KV if is_new else UNKNOWN, 0 if is_new else None)
    for fact in facts:
        if fact.what == "kv":
            state = _STATES.get(fact.detail, fact.detail)
            track.change(fact.time_s, None if state == GONE else state, fact.tokens)
        elif fact.what == "closed":
            track.change(fact.time_s, None, None)
    track.change(end_s, None, None)
    return track.segments
