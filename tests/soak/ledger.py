"""The client's own books: which turns were accepted, how each was told to have ended, and what else it was told."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.client import TenureError

ENDINGS: dict[str, str] = {
    "TURN_ABORTED": "client",
    "DISCONNECTED": "disconnect",
    "DEADLINE": "deadline",
    "SESSION_CLOSED": "session_closed",
    "SESSION_EXPIRED": "session_expired",
    "SLOW_READER": "slow_reader",
    "FORWARD_FAILED": "forward_failed",
    "COMMIT_FAILED": "commit_failed",
    "SHUTDOWN": "shutdown",
    "TURN_REPLACED": "replaced",
}
"""Reason of an error → the server's name of the ending."""
UNHEARD = frozenset({"stop", "length", "client", "disconnect", "deadline", "forward_failed", "session_closed"})
"""Endings that a turn may have come to whose stream was cancelled, or whose call's time was over."""


@dataclass(frozen=True, slots=True)
class TurnKey:
    """One acceptance of one turn."""

    session_id: str
    """Empty without a session."""
    turn_id: str
    attempt: int


@dataclass(slots=True)
class Ledger:
    """Everything that the load was told. Each turn is in it once, whatever number of streams told of it."""

    turns: dict[TurnKey, str | None] = field(default_factory=dict)
    """Accepted → its ending; None while, or because, nobody has heard it."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Calls that were refused as they had to be, by reason."""
    surprises: Counter[str] = field(default_factory=Counter)
    """Errors that no scenario expects: what was done, and the reason."""
    violations: list[str] = field(default_factory=list)
    """Streams that broke what the interface promises."""
    incident_ids: set[str] = field(default_factory=set)
    """That errors named."""
    scenarios: Counter[str] = field(default_factory=Counter)
    """That were played to their end."""
    unsure: int = 0
    """Calls that ended before it was told whether their turn was accepted."""
    sessions_opened: int = 0
    resumed: int = 0
    """Streams that were lost and found again."""

    def accept(self, key: TurnKey) -> None:
        self.turns.setdefault(key, None)

    def end(self, key: TurnKey, ending: str) -> None:
        """A second, different ending of one turn is a violation."""
        told = self.turns.get(key)
        if told is not None and told != ending:
            self.violations.append(f"{key}: ended as {told}, and as {ending}")
        self.turns[key] = ending

    def note_error(self, error: TenureError) -> None:
        """Every error goes through here: the incident that it names is kept."""
        if "incident_id" in error.metadata:
            self.incident_ids.add(error.metadata["incident_id"])

    def endings(self) -> Counter[str]:
        """Those that were heard."""
        return Counter(ending for ending in self.turns.values() if ending is not None)

    @property
    def num_unheard(self) -> int:
        return sum(ending is None for ending in self.turns.values())


@dataclass(frozen=True, slots=True)
class EndingRow:
    """One ending in both books."""

    ending: str
    client: int
    server: int


def compare_endings(ledger: Ledger, server: Mapping[str, int]) -> tuple[list[EndingRow], list[str]]:
    """Both books side by side, and what does not hold.

    What the client heard, the server must have; what the server has beyond that must be turns that nobody heard the
    end of, each of them once, and of a kind that can be unheard.
    """
    heard = ledger.endings()
    names = sorted(set(heard) | {name for name, count in server.items() if count})
    rows = [EndingRow(name, heard[name], server.get(name, 0)) for name in names]
    problems = [f"{row.ending}: heard {row.client}, server {row.server}" for row in rows if row.server < row.client]
    problems += [
        f"{row.ending}: {row.server - row.client} that were not heard"
        for row in rows
        if row.server > row.client and row.ending not in UNHEARD
    ]
    excess = sum(row.server - row.client for row in rows)
    if excess != ledger.num_unheard and not ledger.unsure:
        problems.append(f"the server has {excess} endings beyond those heard; {ledger.num_unheard} were not heard")
    return rows, problems
