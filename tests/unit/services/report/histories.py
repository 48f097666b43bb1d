"""Histories by hand, and how to read what was drawn of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from services.client.history import History, Sample, SessionFact, Totals
from services.client.incidents import Incident
from services.client.pools import Pool
from services.report.page import Server, find_span
from services.report.timeline import Timeline, start_times

START_S = 1_800_000_000.0
SERVER = Server("tiny", "h:1", {"page_size": "16"}, UTC)
QUIET = Totals(0, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})


def full(
    uncached: int = 0,
    session: int = 0,
    protected: int = 0,
    evictable: int = 0,
    *,
    total: int = 100,
    draining: int = 0,
    quarantined: int = 0,
    kind: str = "full",
) -> Pool:
    """What nobody owns is available."""
    available = total - uncached - session - protected - evictable
    page_size = 16 if kind == "full" else 0
    return Pool(kind, total, available, evictable, protected, session, uncached, draining, quarantined, page_size)


def sample(number: int, *pools: Pool, moves: Mapping[str, int] | None = None) -> Sample:
    """The interval that ends so many seconds after START_S, without any work."""
    time_s = START_S + number
    return Sample(time_s, pools or (full(),), moves or {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def history(samples: Sequence[Sample], facts: Sequence[SessionFact] = (), *, dropped: int = 0) -> History:
    now_s = samples[-1].time_s if samples else START_S
    return History(now_s, START_S - 60, 1.0, tuple(samples), tuple(facts), dropped, QUIET)


def idle(seconds: int) -> list[Sample]:
    return [sample(number) for number in range(1, seconds + 1)]


def working(seconds: int) -> list[Sample]:
    """Something of everything."""
    return [
        replace(
            sample(number, full(10, 20, 5, 15), moves={"grant": number % 3, "park": 1}),
            steps=10,
            steps_failed=number % 2,
            tokens_computed=50,
            tokens_generated=10,
            turns_ended=1,
            sessions_open=4,
            turns_running=2,
            turns_waiting=1,
            step_ms_p50=10.0,
            step_ms_max=20.0,
            first_token_ms_p50=30.0,
            first_token_ms_max=40.0,
        )
        for number in range(1, seconds + 1)
    ]


def fact(
    at_s: float,
    what: str,
    detail: str = "",
    *,
    number: int = 1,
    name: str = "chat",
    units: int = 0,
    tokens: int = 0,
    turn_id: str = "t1",
) -> SessionFact:
    """`at_s`: seconds after START_S."""
    return SessionFact(START_S + at_s, name, number, what, detail, units, tokens, turn_id, 7)


def incident(at_s: float, *, over_s: float | None = None, message: str = "NaN", name: str = "i-1") -> Incident:
    until_s = None if over_s is None else START_S + over_s
    return Incident(name, START_S + at_s, "forward_failed", message, until_s, True)


def timeline_of(told: History) -> Timeline:
    return Timeline(find_span(told, UTC), told.samples, start_times(told), told.interval_s, ())


class StrictPage(HTMLParser):
    """Reads a page, and refuses tags that are not closed in order. Collects attributes, and the texts in each tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


def read_picture(markup: str) -> ET.Element:
    """As XML: raises ParseError when it is none."""
    return ET.fromstring(markup)  # noqa: S314  # our own text, and short


def pictures(page: str) -> dict[str, ET.Element]:
    """Every picture by its name, read as XML."""
    trees = [read_picture(told) for told in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    return {tree.attrib["data-chart"]: tree for tree in trees if "data-chart" in tree.attrib}


def titles(tree: ET.Element) -> list[str]:
    return [title.text or "" for title in tree.iter("title")]


def words(tree: ET.Element) -> list[str]:
    return [text.text or "" for text in tree.iter("text")]


def find_all(tree: ET.Element, class_: str) -> list[ET.Element]:
    return [node for node in tree.iter() if class_ in node.attrib.get("class", "").split()]


def read_levels(path: str) -> list[tuple[int, int]]:
    """The corners of an area in whole units: (where a level begins, the level). The last one is where it ends."""
    x = level = 0
    corners: list[tuple[int, int]] = []
    for command, numbers in re.findall(r"([MVhvz])([-\d ]*)", path):
        if command == "M":
            x, level = map(int, numbers.split())
        elif command == "V" and not corners:
            level = int(numbers)
            corners.append((x, level))
        elif command == "h":
            x += int(numbers)
            corners.append((x, level))
        elif command == "v":
            level += int(numbers)
            corners[-1] = (x, level)
    return corners
