"""Which results belong in one picture: a curve an operation over what it might grow with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.core.results import Result
from benchmarks.core.svg import Line, Plot, Points, Style

PEER = "SGLang's classes, 2021 core"


@dataclass(frozen=True, slots=True)
class Curve:
    """A picture: file name, title, x axis, and which results it shows."""

    name: str
    title: str
    x_label: str
    operation: str
    """How the operation's name begins. Phases of an operation ("decode step: advance") are told apart by the colon."""
    variant: str | None = None
    """None: all of them, a line each."""

    def shows(self, result: Result) -> bool:
        is_phase = ":" in self.operation
        is_named = result.operation.startswith(self.operation) and (":" in result.operation) == is_phase
        return is_named and self.variant in (None, result.variant)


CURVES = (
    Curve("evict", "Evict 64 tokens, by leaves of the tree", "leaves of the prefix tree", "evict 64 tokens"),
    Curve("allocate", "Allocate and free 256 token slots, by pool", "token slots in the pool", "allocate and free"),
    Curve("match", "Match a prompt that is cached whole, by length", "tokens, page 16", "match, full hit"),
    Curve("lend", "Lend a held slot and match, by context", "tokens of context, page 16", "lend a held slot"),
    Curve("turn", "Compile and queue a session turn, by context", "tokens of context", "compile and queue"),
    Curve("drafts", "Look drafts up in a turn's own ids, by context", "known ids", "look up drafts"),
    Curve("step", "Host time of a decode step, by batch", "rows of the batch, contexts of about 512", "decode step"),
    Curve(
        "step-phases",
        "Host time of a decode step by phase, one plan at a time",
        "rows of the batch, contexts of about 512",
        "decode step:",
        "one plan at a time",
    ),
    Curve("check", "Full check of a used pool, by pages", "pages, 1,000 sessions", "full check"),
)


def plots(results: Sequence[Result], machine: str) -> Iterator[tuple[str, Plot]]:
    """(name, plot) of each curve that has results. `machine`: told under each title."""
    for curve in CURVES:
        found = [result for result in results if curve.shows(result)]
        if found:
            subtitle = f"median CPU time of one thread; {machine}"
            yield curve.name, Plot(curve.title, subtitle, curve.x_label, tuple(_lines(found)))


def _lines(found: Sequence[Result]) -> Iterator[Line]:
    """A line each variant measured, then targets and the peer's figures, each told once."""
    series: dict[str, list[tuple[float, float]]] = {}
    targets: dict[str, dict[float, float]] = {}
    peers: dict[float, float] = {}
    for result in found:
        label = _label(result)
        series.setdefault(label, []).append((float(result.size), result.timing.median_us))
        if result.target_us is not None:
            targets.setdefault(label, {})[float(result.size)] = result.target_us
        if result.peer_us is not None:
            peers[float(result.size)] = result.peer_us
    for label, points in series.items():
        yield Line(label, tuple(sorted(points)))
    yield from _target_lines({label: tuple(sorted(targets.get(label, {}).items())) for label in series})
    if peers:
        yield Line(PEER, tuple(sorted(peers.items())), Style.PEER)


def _label(result: Result) -> str:
    """What tells a result from the others of its picture."""
    phase = result.operation.partition(": ")[2]
    return phase or result.variant or "measured"


def _target_lines(targets: dict[str, Points]) -> Iterator[Line]:
    """One line for a target that all share, else one for each, named after what it is the target of."""
    if len(set(targets.values())) == 1:
        targets = {"": next(iter(targets.values()))}
    for label, points in targets.items():
        if points:
            yield Line(f"target, {label}" if label else "target", points, Style.TARGET)
