"""What is left to read when something is wrong: why it is told, the books, the batch, and where all threads are.

Text for people, a heading word at each line's start. No token id is ever in it.
"""

import asyncio
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from engine.core.core import Core
from engine.core.errors import CoreError
from engine.runtime.dump_books import (
    Reading,
    tell_findings,
    tell_histories,
    tell_owners,
    tell_plans,
    tell_pools,
    tell_sessions,
    tell_turns,
    tell_verdict,
)
from engine.runtime.incidents import IncidentKind
from engine.runtime.lifecycle import EngineState
from engine.runtime.stacks import format_stacks, format_tasks
from engine.runtime.vitals import Phase

BOOKS_CHARS_MAX = 40 * 1024
STACKS_CHARS_MAX = 24 * 1024
"""A dump is not longer than both together."""

_WIDTH = 120
_TRIES = 4
"""How often a part is read that another thread changes meanwhile."""
_BROKEN = (CoreError, AssertionError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)
"""What reading a core may raise whose records contradict each other, or change meanwhile."""

_PARTS: tuple[tuple[str, Callable[[Reading], list[str]]], ...] = (
    ("pools", tell_pools),
    ("plans", tell_plans),
    ("turns", tell_turns),
    ("sessions", tell_sessions),
    ("owners", tell_owners),
    ("findings", tell_findings),
    ("units", tell_histories),
)

_MODEL = "the model or its device is at fault, not the books"
_AT_FAULT: dict[IncidentKind, str] = {
    IncidentKind.FORWARD_STUCK: _MODEL,
    IncidentKind.FORWARD_FAILED: _MODEL,
    IncidentKind.FAILING: _MODEL,
    IncidentKind.LOOP_STUCK: "what blocks the event loop is at fault, not the books; the stack of its thread is below",
    IncidentKind.SLOW_START: "the start itself is slow; the stacks below tell what it waits for",
    IncidentKind.LEAK: "what was lost is out of circulation, and it goes on",
    IncidentKind.HALTED: "it halted for another reason",
    IncidentKind.SLOW_END: "the end itself is slow; the stacks below tell what it waits for",
}
"""What it means, when the books balance."""


@dataclass(frozen=True, slots=True)
class DumpHead:
    """Why a dump is made, and of what moment."""

    message: str
    """What happened, in a line."""
    state: EngineState
    phase: Phase
    kind: IncidentKind | None = None
    incident_id: str | None = None
    """Both None: somebody asked for it."""
    age_s: float = 0.0
    """Without progress for so long."""
    limit_s: float = 0.0
    beat: int = 0
    """How often the loop has come round."""
    paused_s: float = 0.0
    """How long the process was stopped, all in all."""
    taken_by: str = "the event loop"
    """The thread that tells."""
    time_s: float = 0.0
    """When: seconds since 1970."""
    is_torn: bool = False
    """The loop runs meanwhile: what is read may not fit together."""


def dump_core(core: Core, failure: Exception | None = None) -> str:
    """Lines of text, the first of which says whether the books balance.

    Checks the books once more, for the halt may have another cause than they, or may have been found by their counters.
    A part that is too broken to be told of is named in its place.
    """
    return "\n".join(_cut(_tell_books(Reading(core, failure), None), BOOKS_CHARS_MAX))


def dump_engine(
    core: Core | None,
    head: DumpHead,
    failure: Exception | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> str:
    """As `dump_core`, with why, and with the stacks of all threads and what the tasks of `loop` wait for.

    Any thread may call it. Without a `core` there is none yet.
    """
    if core is None:
        books = ["books: there are none yet: the model is not loaded", *_describe(head, is_balanced=None)]
    else:
        books = _tell_books(_read(core, failure, head), head)
    tasks = [] if loop is None else _try("tasks", partial(format_tasks, loop))
    stacks = [*_try("stacks", format_stacks), *tasks]
    return "\n".join((*_cut(books, BOOKS_CHARS_MAX), *_cut(stacks, STACKS_CHARS_MAX)))


def _read(core: Core, failure: Exception | None, head: DumpHead) -> Reading:
    """While the loop runs, books that do not balance may only have been read half way through a change."""
    reading = Reading(core, failure)
    for _ in range(_TRIES - 1):
        if not head.is_torn or _is_balanced(reading):
            break
        reading = Reading(core, failure)
    return reading


def _is_balanced(reading: Reading) -> bool | None:
    """None: it can not be told."""
    try:
        return reading.is_balanced
    except _BROKEN:
        return None


def _tell_books(reading: Reading, head: DumpHead | None) -> list[str]:
    lines = _try("books", partial(tell_verdict, reading))
    if head is not None:
        lines += _describe(head, is_balanced=_is_balanced(reading))
    for name, part in _PARTS:
        lines += _try(name, partial(part, reading))
    return lines


def _try(name: str, part: Callable[[], list[str]]) -> list[str]:
    """What another thread changes meanwhile is read again. What stays unreadable is named in its place."""
    for is_last in (False,) * (_TRIES - 1) + (True,):
        try:
            return part()
        except _BROKEN as error:
            if is_last or not isinstance(error, RuntimeError):
                return [f"{name}: CAN NOT BE TOLD: {type(error).__name__}: {error}"]
    return []


def _describe(head: DumpHead, *, is_balanced: bool | None) -> list[str]:
    """What happened, what that means, and of which moment all this is."""
    facts = [
        f"at={datetime.fromtimestamp(head.time_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"incident={head.incident_id or 'none'}",
        f"kind={head.kind or 'asked_for'}",
        f"state={head.state}",
        f"phase={head.phase}",
        f"age={head.age_s:.1f}s",
        f"limit={head.limit_s:g}s",
        f"beat={head.beat}",
        f"paused={head.paused_s:.1f}s",
        f"taken_by={head.taken_by!r}",
    ]
    texts = [head.message, *_conclude(head, is_balanced), " ".join(facts)]
    if head.is_torn:
        texts.append("read while the loop ran: what is told below may not fit together")
    return [line for text in texts for line in _wrap(text)]


def _conclude(head: DumpHead, is_balanced: bool | None) -> list[str]:
    if is_balanced is None:
        return []
    if not is_balanced:
        doubt = " (or were read half way through a change: ask again)" if head.is_torn else ""
        return [f"THE BOOKS DO NOT BALANCE{doubt}: the findings below come before all else; please report them"]
    return ["the books balance" if head.kind is None else f"the books balance: {_AT_FAULT[head.kind]}"]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="why: ", subsequent_indent="why:   ", break_on_hyphens=False)


def _cut(lines: list[str], chars_max: int) -> list[str]:
    """As many lines as fit, then one that says how many did not."""
    chars = 0
    for told, line in enumerate(lines):
        chars += len(line) + 1
        if chars > chars_max:
            return [*lines[:told], f"cut: {len(lines) - told} more lines here would make this longer than it may be"]
    return lines
