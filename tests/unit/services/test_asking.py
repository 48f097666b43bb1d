"""The client's calls that only look: each has an end, also where nobody answers."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import pytest
from grpc import aio

from services.cli.report import describe_error, is_silence, is_unknown_call
from services.client import Client, ClientSession, OptionError, TenureError, connect
from services.client.asking import ANSWER_TIMEOUTS_S, NO_ANSWER, NO_CONNECTION

SHORT_S = 0.2
Ask = Callable[[Client], Awaitable[object]]


async def read_all(client: Client) -> list[object]:
    return [session async for session in client.sessions()]


async def read_first(client: Client) -> object:
    return await anext(client.kv_events())


ASKED: dict[str, Ask] = {
    "kv_event_sources": lambda client: client.kv_event_sources(),
    "flush_cache": lambda client: client.flush_cache(),
    "kv_events": read_first,
    "trace": lambda client: client.trace("t"),
    "is_serving": lambda client: client.is_serving("liveness"),
    "model": lambda client: client.model(),
    "config": lambda client: client.config(),
    "pools": lambda client: client.pools(),
    "snapshot": lambda client: client.snapshot(),
    "explain": lambda client: client.explain(1),
    "incidents": lambda client: client.incidents(),
    "find_session": lambda client: client.find_session("s"),
    "sessions": read_all,
    "check": lambda client: client.check(),
    "history": lambda client: client.history(),
    "dump": lambda client: client.dump(),
}


class NeverAnswered(grpc.GenericRpcHandler):
    """Takes every call, as a server does whose event loop is stuck: its transport is not."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def wait(_request: bytes, _context: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(wait)


@asynccontextmanager
async def grpc_server(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    server = aio.server(handlers=handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextmanager
def mute_listener() -> Iterator[str]:
    """The kernel takes the connections and nobody speaks, as with a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        yield f"{host}:{port}"


def test_table_when_compared_with_the_client_then_each_call_that_only_looks_has_a_time() -> None:
    others = {"close", "session", "generate", "is_ready"}
    public = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert set(ANSWER_TIMEOUTS_S) - {"plant"} == set(ASKED) == public - others
    assert hasattr(ClientSession, "close"), "it waits for turns, and has its own"


@pytest.mark.parametrize("method", ASKED)
async def test_call_when_the_server_never_answers_then_ends_with_no_answer(method: str) -> None:
    async with grpc_server(NeverAnswered()) as target, connect(target, answer_timeout_s=SHORT_S) as client:
        with pytest.raises(TenureError) as caught:
            await asyncio.wait_for(ASKED[method](client), 20)
    error = caught.value
    assert (error.reason, error.code) == (NO_ANSWER, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert is_silence(error)
    told = describe_error(error, target)
    assert told.startswith(f"the server at {target} took the call and has not answered for 0.2 s: its event loop ")
    assert "--health-port" in told
    assert "\n" not in told


async def test_call_when_the_table_has_a_short_time_then_that_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWER_TIMEOUTS_S, "pools", SHORT_S)
    async with grpc_server(NeverAnswered()) as target, connect(target) as client:
        with pytest.raises(TenureError, match=r"not answered for 0\.2 s"):
            await asyncio.wait_for(client.pools(), 20)


async def test_call_when_what_listens_does_not_speak_then_nobody_has_taken_it() -> None:
    with mute_listener() as target:
        async with connect(target, answer_timeout_s=SHORT_S) as client:
            with pytest.raises(TenureError) as caught:
                await asyncio.wait_for(client.pools(), 20)
    assert caught.value.reason == NO_CONNECTION
    assert describe_error(caught.value, target).startswith(f"nobody at {target} takes the call, nor refuses it: ")


async def test_call_when_the_transport_gives_up_before_its_time_then_the_same_is_told() -> None:
    with mute_listener() as target:
        async with connect(target) as client:
            with pytest.raises(TenureError) as caught:
                await asyncio.wait_for(client.pools(), 20)
    assert describe_error(caught.value, target).startswith(f"nobody at {target} takes the call, nor refuses it: ")


@pytest.mark.parametrize("method", ASKED)
async def test_call_when_the_server_does_not_know_it_then_it_may_be_older_or_no_tenure(method: str) -> None:
    async with grpc_server() as target, connect(target) as client:
        with pytest.raises(TenureError) as caught:
            await ASKED[method](client)
    assert is_unknown_call(caught.value)
    told = describe_error(caught.value, target)
    assert told.startswith(f"the server at {target} does not know this call: it is older than this command, ")


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_connect_when_the_time_for_answers_can_not_be_then_refused(timeout_s: float) -> None:
    with pytest.raises(OptionError, match="answer_timeout_s"):
        connect("127.0.0.1:9", answer_timeout_s=timeout_s)
