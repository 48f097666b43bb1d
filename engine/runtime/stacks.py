"""Where every thread and every task is at this moment, as lines of text, read from whichever thread asks.

Frames are told by file, line, function and source line; never what is in their variables.
"""

import asyncio
import linecache
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

FRAMES_MAX = 40
"""Innermost frames of a thread that are told."""
TASKS_MAX = 48
"""Groups of tasks at one place that are told."""
_TASK_FRAMES_MAX = 3
"""Innermost frames of a task that are told."""
_NAMES_MAX = 4
"""Names of tasks at one place that are told."""
_SOURCE_CHARS_MAX = 72
_TRIES = 5
"""How often a set is read that another thread changes meanwhile."""

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
"""Of coroutines, and of generators that act as such."""

_Place = tuple[CodeType, int]
"""A code and the line in it."""


def format_stacks() -> list[str]:
    """All threads, innermost frame last; the calling thread is the last one. Threads at one place are told once."""
    own = threading.get_ident()
    names = {thread.ident: _name_thread(thread) for thread in threading.enumerate()}
    groups: dict[tuple[_Place, ...], list[str]] = {}
    for ident, frame in sorted(sys._current_frames().items()):  # noqa: SLF001 - documented, if for debuggers only
        if ident != own:
            groups.setdefault(_walk(frame), []).append(names.get(ident, f"{ident} (not started by Python)"))
    groups[_walk(sys._getframe(1))] = [f"{names.get(own, str(own))}, which tells this"]  # noqa: SLF001 - as above
    return [line for places, group in groups.items() for line in _format_thread(group, places)]


def _name_thread(thread: threading.Thread) -> str:
    return f"{thread.name} (daemon)" if thread.daemon else thread.name


def _walk(frame: FrameType | None) -> tuple[_Place, ...]:
    """Innermost last. The thread may run on meanwhile: each frame is looked at once."""
    places: list[_Place] = []
    while frame is not None:
        places.append((frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno))
        frame = frame.f_back
    while places and _is_beginning(places[-1][0]):
        places.pop()
    return tuple(reversed(places))


def _is_beginning(code: CodeType) -> bool:
    """Where every thread begins: that says nothing."""
    return code.co_filename == threading.__file__ and code.co_name in ("_bootstrap", "_bootstrap_inner", "run")


def _format_thread(names: list[str], places: tuple[_Place, ...]) -> list[str]:
    num_left_out = max(0, len(places) - FRAMES_MAX)
    head = f"thread: {_join(names)}"
    return [
        head if not num_left_out else f"{head}; its {num_left_out} outermost frames are left out",
        *(_format_place(place) for place in places[num_left_out:]),
    ]


def format_tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Each task of `loop` and what it awaits, innermost frame last; tasks that wait at one place are told once."""
    groups: dict[tuple[_Place, ...], list[str]] = {}
    for task in _find_tasks(loop):
        groups.setdefault(tuple(_await_chain(task.get_coro())), []).append(task.get_name())
    told = sorted(groups.items(), key=lambda group: len(group[1]))  # those that are like no other come first
    left_out = sum(len(names) for _, names in told[TASKS_MAX:])
    lines = [line for places, names in told[:TASKS_MAX] for line in _format_task(sorted(names), places)]
    return [*lines, *([f"task: {left_out} more are left out"] if left_out else [])]


def _find_tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[object]]:
    """Raises RuntimeError when tasks come and go faster than they can be listed."""
    for _ in range(_TRIES - 1):
        try:
            return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
        except RuntimeError:  # a task came or went meanwhile
            continue
    return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())


def _await_chain(awaited: object) -> Iterator[_Place]:
    """From the task's own coroutine to the one that waits. The last one of all may be a future, which has no place."""
    while awaited is not None:
        frame = next((frame for name in _FRAMES if (frame := getattr(awaited, name, None)) is not None), None)
        if isinstance(frame, FrameType):  # one that was written in C has none, and may still await one that has
            yield frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno
        awaited = next((below for name in _AWAITED if (below := getattr(awaited, name, None)) is not None), None)


def _format_task(names: list[str], places: tuple[_Place, ...]) -> list[str]:
    if not places:
        return [f"task: {_join(names)}, written in C"]
    return [f"task: {_join(names)}", *(_format_place(place) for place in places[-_TASK_FRAMES_MAX:])]


def _join(names: list[str]) -> str:
    told = ", ".join(names[:_NAMES_MAX])
    return told if len(names) <= _NAMES_MAX else f"{told} and {len(names) - _NAMES_MAX} more at the same place"


def _format_place(place: _Place) -> str:
    code, line = place
    source = linecache.getline(code.co_filename, line).strip()
    if len(source) > _SOURCE_CHARS_MAX:
        source = source[: _SOURCE_CHARS_MAX - 1] + "…"
    where = f"  {_shorten(code.co_filename, sys.path)}:{line} {code.co_name}"
    return f"{where}: {source}" if source else where


def _shorten(path: str, roots: Iterable[str]) -> str:
    """From the folder on that it is imported from."""
    root = max((root for root in roots if root and path.startswith(f"{root}/")), key=len, default="")
    return path.removeprefix(f"{root}/") if root else path
