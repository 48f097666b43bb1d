"""Programs of others that read KV events, each in a process of its own: NVIDIA Dynamo's indexer and smg's relay."""

import asyncio
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telemetry.kv.feed import KvSource
from tests.kit.requirements import requires

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".cache" / "peers"
"""Where `make services` puts them: beside our environment, so that it has nothing of theirs."""
MODEL = "shadow"
WORKER = 1
START_S = 60.0
WAIT_S = 20.0

needs_peers = requires(
    "peers",
    present=(PEERS / "dynamo").is_dir() and (PEERS / "smg_grpc_servicer").is_dir(),
    reason="KV events are not read by the programs that they are for (make services)",
)


@asynccontextmanager
async def _running(*arguments: str, stdin: int | None, stdout: int) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": f"{PEERS}{os.pathsep}{ROOT}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, cwd=ROOT, stdin=stdin, stdout=stdout
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True)
class Indexer:
    """`python -m dynamo.indexer`: asked for prefixes by their token ids."""

    base: str

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and answer. Raises OSError when it is not there."""
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.base + path, data, headers, method=method)  # noqa: S310 - loopback
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def register(self, source: KvSource, endpoint: str | None = None) -> None:
        """Has it listen to this publisher, at another address when one is given."""
        body = {
            "instance_id": WORKER,
            "endpoint": endpoint or source.endpoint,
            "replay_endpoint": source.replay_endpoint,
            "model_name": MODEL,
            "block_size": source.page_size,
        }
        status, answer = await self.ask("POST", "/register", body)
        assert status == 201, answer

    async def matched(self, token_ids: Sequence[int], **more: str) -> int:
        """Tokens at the begin of a prompt that it believes are in the worker's cache."""
        body = {"token_ids": list(token_ids), "model_name": MODEL, **more}
        status, answer = await self.ask("POST", "/query", body)
        assert status == 200, answer
        scores: dict[str, dict[str, int]] = answer["scores"]
        return scores.get(str(WORKER), {}).get("0", 0)

    async def until_matched(self, token_ids: Sequence[int], expected: int, **more: str) -> None:
        found = -1
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while (found := await self.matched(token_ids, **more)) != expected:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
        assert found == expected, f"{found} of {len(token_ids)} tokens found, {expected} are there"


@asynccontextmanager
async def indexer() -> AsyncIterator[Indexer]:
    """Ready, and knowing nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ("-m", "dynamo.indexer", "--port", str(port), "--threads", "1")
    async with _running(*arguments, stdin=None, stdout=asyncio.subprocess.DEVNULL) as process:
        found = Indexer(f"http://127.0.0.1:{port}")
        async with asyncio.timeout(START_S):
            while True:
                assert process.returncode is None, "the indexer did not start"
                with suppress(OSError):
                    if (await found.ask("GET", "/health"))[0] == 200:
                        break
                await asyncio.sleep(0.02)
        yield found


@dataclass(slots=True)
class Relay:
    """smg's relay, which computes every hash again. `counts` are its own, of the last batch."""

    said: list[dict[str, Any]] = field(default_factory=list)
    """Batches, in order; or the failure that ended it."""

    @property
    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.said[-1]["counts"] if self.said else {}
        return counts

    @property
    def next(self) -> int:
        """Number of the batch behind the last one."""
        return int(self.said[-1]["sequence"]) + 1 if self.said else 0

    async def hear(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            self.said.append(json.loads(line))


@asynccontextmanager
async def relay(source: KvSource) -> AsyncIterator[Relay]:
    """Subscribed; what is published before its subscription arrives it never asks for."""
    pipe = asyncio.subprocess.PIPE
    arguments = ("-m", "tests.kit.kv_relay", source.endpoint, source.replay_endpoint)
    async with _running(*arguments, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            assert json.loads(await process.stdout.readline()) == {"ready": True}
        heard = Relay()
        task = asyncio.create_task(heard.hear(process.stdout), name="relay")
        yield heard
        process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            await task
