"""What a server's log says, read as entries with a name, facts and, behind a dump, lines."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(?P<ms>\d{3}) level=(?P<level>\w+) logger=\S+ event=(?P<name>\w+)"
    r"(?P<rest>.*)$"
)
_START = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} level=")
_FACT = re.compile(r"(\w+)=(\S+?):?(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    time_s: float
    """Seconds since 1970."""
    level: str
    name: str
    facts: Mapping[str, str]
    rest: str
    """All behind the name."""
    lines: tuple[str, ...]
    """What follows it: of a dump, the dump."""

    @property
    def incident_id(self) -> str | None:
        return self.facts.get("incident_id")

    @property
    def kind(self) -> str | None:
        return self.facts.get("kind")


def read_log(text: str, since_s: float = 0.0) -> list[Entry]:
    """The entries of our own format from that moment on, in their order."""
    entries: list[Entry] = []
    lines = text.splitlines()
    for place, line in enumerate(lines):
        found = _ENTRY.match(line)
        if found is None:
            continue
        at_s = time.mktime(time.strptime(found["time"], "%Y-%m-%d %H:%M:%S")) + int(found["ms"]) / 1000
        if at_s >= since_s:
            facts = dict(_FACT.findall(found["rest"]))
            body = _body(lines, place + 1)
            entries.append(Entry(at_s, found["level"], found["name"], facts, found["rest"], body))
    return entries


def _body(lines: list[str], start: int) -> tuple[str, ...]:
    end = start
    while end < len(lines) and not _START.match(lines[end]):
        end += 1
    return tuple(lines[start:end])
