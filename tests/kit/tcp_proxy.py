"""A TCP proxy on loopback whose connections can be cut, as a network does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK_BYTES = 65536


class TcpProxy:
    """Passes bytes on until it is told to break the connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self._pipes: set[asyncio.Task[None]] = set()
        self.connections = 0
        """How many were made."""
        self.is_open = True
        """Whether new ones are let through."""

    def cut(self) -> None:
        """Breaks every connection at once, without a word to either side."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        self.connections += 1
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += (writer, server_writer)
        for source, target in ((reader, server_writer), (server_reader, writer)):
            pipe = asyncio.create_task(_pass_on(source, target), name="proxy")
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def close(self) -> None:
        self.cut()
        await asyncio.gather(*self._pipes)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await source.read(_CHUNK_BYTES):
            target.write(chunk)
            await target.drain()
    target.transport.abort()


@asynccontextmanager
async def tcp_proxy(target: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    """A proxy to `target`, and the address to connect to instead."""
    proxy = TcpProxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"127.0.0.1:{port}"
    finally:
        server.close()
        await proxy.close()
