"""`tenure demo`: a real server process, a conversation of three turns, and what its session saved."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.cli.answers import print_answer
from services.cli.books import TurnBook, format_pools
from services.cli.pools import settled_pools
from services.cli.terminal import Terminal
from services.client import Client, PoolStats, SamplingOptions, TenureError, Turn, connect

QUESTIONS = (
    "What is the capital of France?",
    "What is it famous for?",
    "And what is the capital of Italy?",
)
TEXTS = (
    "The capital of France is",
    "\nThe city is famous for",
    "\nThe capital of Italy is",
)
"""What a model that can not chat is to go on with."""

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
_STOP_PROMISE_S = 5.0
"""Within which a server that was told to stop has ended."""
_READY = re.compile(r"ready on (\S+)")


class DemoFailed(Exception):
    """Something was not as the demo promises."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    process: asyncio.subprocess.Process
    target: str
    showing: asyncio.Task[None]
    """Shows what the server says, until its end."""


def run_demo(*, max_tokens: int, model: str | None = None) -> int:
    """`model` is what `tenure serve --model` is told."""
    try:
        asyncio.run(_demo(max_tokens, model))
    except (DemoFailed, TenureError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    return 0


async def _demo(max_tokens: int, model: str | None) -> None:
    async with running_server(() if model is None else ("--model", model)) as server:
        async with connect(server.target) as client:
            await _converse(client, max_tokens)
        await _stop(server)


async def _converse(client: Client, max_tokens: int) -> None:
    book = TurnBook()
    saved, context = 0, 0
    can_chat = "chat" in (await client.model()).features
    if not can_chat:
        print("\nThis model has no chat template: it goes on with texts.")
    async with client.session(streaming=True) as session:
        for said in QUESTIONS if can_chat else TEXTS:
            print(f"\n{'you' if can_chat else 'text'}> {said.lstrip()}", flush=True)
            options = SamplingOptions(max_tokens=max_tokens)
            turn = session.turn(said, **options) if can_chat else session.turn(text=said, **options)
            await print_answer(turn, Terminal(sys.stdout, sys.stdout, sys.stderr))
            stats = await settled_pools(client)
            print(f"[{book.close_turn(turn, stats)}]", flush=True)
            _require_reuse(turn, stats)
            if turn.usage is not None:
                saved += turn.usage.tokens_from_slot
                context += turn.usage.context_tokens
        print(f"\nThe session kept {saved} of the {context} tokens of its three contexts. Who owns the pages now:")
        print(format_pools(await settled_pools(client)))
    stats = await settled_pools(client)
    print("\nAfter closing the session:")
    print(format_pools(stats), flush=True)
    _require_given_back(stats)


def _require_reuse(turn: Turn, stats: PoolStats) -> None:
    usage = turn.usage
    if usage is None or not turn.is_committed:
        raise DemoFailed("a turn ended without being committed")
    if usage.context_tokens != usage.tokens_from_slot + usage.tokens_from_tree + usage.tokens_computed:
        raise DemoFailed(f"the parts of the context do not add up: {usage}")
    if not stats.balanced:
        raise DemoFailed("the books do not balance")


def _require_given_back(stats: PoolStats) -> None:
    is_held = any(pool.session_held or pool.uncached for pool in stats.pools)
    if not stats.balanced or is_held or stats.sessions_open:
        raise DemoFailed("the closed session still holds something")


@asynccontextmanager
async def running_server(options: Sequence[str] = ()) -> AsyncIterator[ServerProcess]:
    """`tenure serve` on a free port, in a session of its own so that our Ctrl-C is not also its. Ended at the end."""
    command = ("serve", "--port", "0", *options)
    print("starting a server: tenure", *command, flush=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli.main", *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            target = await _wait_ready(process)
        yield ServerProcess(process, target, asyncio.create_task(_show_rest(process), name="demo-server-output"))
    except TimeoutError:
        raise DemoFailed(f"the server was not ready within {START_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _wait_ready(process: asyncio.subprocess.Process) -> str:
    """Shows what the server says until it is ready. Returns where it listens."""
    async for line in _lines(process):
        found = _READY.search(line)
        if found is not None:
            return found[1]
    raise DemoFailed(f"the server ended with exit code {await process.wait()} before it was ready")


async def _show_rest(process: asyncio.subprocess.Process) -> None:
    async for _line in _lines(process):
        pass


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    """Shows each line of the server, but for its configuration and what it logs for operators, and hands it on."""
    assert process.stdout is not None, "the process was started with a pipe"
    while line := (await process.stdout.readline()).decode(errors="replace"):
        if not line.startswith(("configuration:", " ")) and "level=INFO" not in line:
            print(f"  server: {line}", end="", flush=True)
        yield line


async def _stop(server: ServerProcess) -> None:
    started_s = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await server.showing
            await server.process.wait()
    except TimeoutError:
        raise DemoFailed(f"the server did not end within {STOP_TIMEOUT_S:.0f} s of SIGTERM") from None
    took_s = time.monotonic() - started_s
    print(f"server ended with exit code {server.process.returncode} in {took_s:.1f} s after SIGTERM", flush=True)
    if server.process.returncode != 0 or took_s > _STOP_PROMISE_S:
        raise DemoFailed("the server did not end cleanly")
