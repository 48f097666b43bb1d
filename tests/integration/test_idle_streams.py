"""A stream on which nothing is told stays open: the pings that keep it alive are what the server allows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

import grpc
import pytest
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.limits import LIMITS, ChannelOptions, client_options, server_options

Watch: TypeAlias = "aio.UnaryStreamCall[Message, health_pb2.HealthCheckResponse]"

BUSY = replace(LIMITS, ping_interval_s=1, ping_allowed_s=0)
"""As in production, with a ping a second: what goes wrong at 20 s a ping only after minutes, goes wrong soon."""
STRICT = tuple(option for option in server_options(BUSY) if "min_ping_interval" not in option[0])
IDLE_S = 6.0


@asynccontextmanager
async def watching(options: ChannelOptions) -> AsyncIterator[Watch]:
    """A health watch, of which the first message was read."""
    server = aio.server(options=options)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=client_options(BUSY)) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        call = watch(health_pb2.HealthCheckRequest(service=""))
        await call.read()
        yield call
        call.cancel()
    await server.stop(0)


async def test_stream_when_nothing_is_told_for_many_pings_then_it_stays_open() -> None:
    async with watching(server_options(BUSY)) as call:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.read(), IDLE_S)


async def test_stream_when_the_server_has_not_been_told_to_allow_pings_then_it_is_cut() -> None:
    """The same without the option: so that the test above can fail."""
    async with watching(STRICT) as call:
        with pytest.raises(aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), IDLE_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
