"""Where threads and tasks are, told from outside."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from engine.runtime.stacks import FRAMES_MAX, TASKS_MAX, format_stacks, format_tasks

SECRET = "what somebody said"


@contextmanager
def waiting_threads(names: list[str], depth: int = 0) -> Iterator[None]:
    """Threads that wait in `wait_below`, as deep."""
    go_on, reached = threading.Event(), threading.Barrier(len(names) + 1)
    threads = [
        threading.Thread(target=wait_below, args=(depth, go_on, reached, SECRET), name=name, daemon=True)
        for name in names
    ]
    for thread in threads:
        thread.start()
    reached.wait(10)
    try:
        yield
    finally:
        go_on.set()
        for thread in threads:
            thread.join(10)


def wait_below(depth: int, go_on: threading.Event, reached: threading.Barrier, said: str) -> None:
    if depth > 0:
        wait_below(depth - 1, go_on, reached, said)
        return
    wait_here(go_on, reached)


def wait_here(go_on: threading.Event, reached: threading.Barrier) -> None:
    reached.wait(10)
    go_on.wait(10)


def parts_of(lines: list[str]) -> dict[str, list[str]]:
    """Heading line → its frames."""
    parts: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("  "):
            parts[line] = []
        else:
            parts[list(parts)[-1]].append(line)
    return parts


def test_format_stacks_when_a_thread_waits_then_file_line_function_and_source_are_told_innermost_last() -> None:
    with waiting_threads(["a-waiting-thread"]):
        frames = parts_of(format_stacks())["thread: a-waiting-thread (daemon)"]
    assert [frame.split()[1].rstrip(":") for frame in frames[:2]] == ["wait_below", "wait_here"]
    where, source = frames[0].split(": ", 1)
    assert where.startswith("  tests/unit/runtime/test_stacks.py:")
    assert source == "wait_here(go_on, reached)"
    assert "threading.py:" in frames[-1]


def test_format_stacks_when_called_then_the_calling_thread_is_the_last() -> None:
    with waiting_threads(["another"]):
        parts = parts_of(format_stacks())
    *_, (head, frames) = parts.items()
    assert head == f"thread: {threading.current_thread().name}, which tells this"
    assert "format_stacks())" in frames[-1]


def test_format_stacks_when_threads_wait_at_one_place_then_it_is_told_once_with_their_number() -> None:
    with waiting_threads([f"worker-{number}" for number in range(7)]):
        heads: list[str] = []
        while len(heads) != 1:  # some may be on their way to the place still
            heads = [head for head in parts_of(format_stacks()) if "worker-" in head]
    assert heads[0].count("worker-") == 4
    assert heads[0].endswith(" and 3 more at the same place")


def test_format_stacks_when_a_stack_is_deep_then_its_outermost_frames_are_counted() -> None:
    with waiting_threads(["deep"], depth=200):
        parts = parts_of(format_stacks())
    (head,) = (head for head in parts if head.startswith("thread: deep"))
    assert "outermost frames are left out" in head
    assert len(parts[head]) == FRAMES_MAX


def test_format_stacks_when_variables_hold_a_text_then_it_is_not_told() -> None:
    with waiting_threads(["knows-it"], depth=3):
        assert SECRET not in "\n".join(format_stacks())


async def numbers() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 1


async def wait_deep(depth: int) -> None:
    if depth == 0:
        await asyncio.Event().wait()
    await wait_deep(depth - 1)


async def tell_tasks(names: list[str], depth: int = 0) -> dict[str, list[str]]:
    tasks = [asyncio.create_task(wait_deep(depth), name=name) for name in names]
    await asyncio.sleep(0)
    try:
        return parts_of(await asyncio.to_thread(format_tasks, asyncio.get_running_loop()))
    finally:
        for task in tasks:
            task.cancel()


async def test_format_tasks_when_one_waits_then_its_name_and_innermost_frames_are_told() -> None:
    frames = (await tell_tasks(["reader"], depth=5))["task: reader"]
    assert len(frames) == 3
    assert frames[0].endswith("wait_deep: await wait_deep(depth - 1)")
    assert frames[1].endswith("wait_deep: await asyncio.Event().wait()")
    assert " wait: " in frames[2]


async def test_format_tasks_when_many_wait_at_one_place_then_once_with_their_number() -> None:
    parts = await tell_tasks([f"reader-{number}" for number in range(9)])
    heads = [head for head in parts if "reader-" in head]
    assert heads == ["task: reader-0, reader-1, reader-2, reader-3 and 5 more at the same place"]


async def test_format_tasks_when_there_are_too_many_places_then_the_rest_is_counted() -> None:
    tasks = [asyncio.create_task(wait_deep(depth), name=f"depth-{depth}") for depth in range(TASKS_MAX + 9)]
    await asyncio.sleep(0)
    *_, last = format_tasks(asyncio.get_running_loop())
    for task in tasks:
        task.cancel()
    assert last.startswith("task: ")
    assert last.endswith(" more are left out")


async def test_format_tasks_when_a_generator_is_awaited_then_its_reader_is_told() -> None:
    async def read() -> None:
        async for _ in numbers():
            pass

    task = asyncio.create_task(read(), name="of-a-generator")
    await asyncio.sleep(0)
    parts = parts_of(format_tasks(asyncio.get_running_loop()))
    task.cancel()
    assert "read: async for _ in numbers():" in parts["task: of-a-generator"][-1]


@pytest.mark.parametrize("times", [1, 10**6])
async def test_format_tasks_when_tasks_come_and_go_then_they_are_listed_again(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, listed = [times], asyncio.all_tasks

    def changing(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[object]]:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("Set changed size during iteration")
        return listed(loop)

    monkeypatch.setattr(asyncio, "all_tasks", changing)
    if times == 1:
        assert any(line.startswith("task: ") for line in format_tasks(asyncio.get_running_loop()))
    else:
        with pytest.raises(RuntimeError, match="changed size"):
            format_tasks(asyncio.get_running_loop())
