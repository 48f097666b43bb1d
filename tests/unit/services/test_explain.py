"""What `tenure explain`, `incidents` and `dump` ask for besides: a server that lacks it does not spoil the answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from protos.v1 import admin_pb2, history_pb2
from services.cli.dump import can_be_drill
from services.cli.explain import find_names
from services.client import Client, connect

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name


async def tell_history(_request: admin_pb2.GetHistoryRequest, _context: object) -> admin_pb2.GetHistoryResponse:
    facts = [history_pb2.SessionFact(session_id=f"user-{number}", session_number=number) for number in (3, 9)]
    return admin_pb2.GetHistoryResponse(facts=facts)


@asynccontextmanager
async def client_of(*, fault_injection: str | None = None, has_history: bool = False) -> AsyncIterator[Client]:
    """Of a server that has no other calls than these."""

    async def tell_config(_request: admin_pb2.GetConfigRequest, _context: object) -> admin_pb2.GetConfigResponse:
        return admin_pb2.GetConfigResponse(
            settings=[admin_pb2.Setting(name="fault_injection", value=fault_injection or "")]
        )

    server = aio.server()
    if has_history:
        told = grpc.unary_unary_rpc_method_handler(
            tell_history,
            request_deserializer=admin_pb2.GetHistoryRequest.FromString,
            response_serializer=admin_pb2.GetHistoryResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetHistory": told}),))
    if fault_injection is not None:
        settings = grpc.unary_unary_rpc_method_handler(
            tell_config,
            request_deserializer=admin_pb2.GetConfigRequest.FromString,
            response_serializer=admin_pb2.GetConfigResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetConfig": settings}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connect(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(None)


async def test_find_names_when_the_server_remembers_sessions_then_each_has_its_name() -> None:
    async with client_of(has_history=True) as client:
        assert await find_names(client) == {3: "user-3", 9: "user-9"}


async def test_find_names_when_the_server_has_no_history_then_none_and_no_error() -> None:
    async with client_of() as client:
        assert await find_names(client) == {}


@pytest.mark.parametrize(("fault_injection", "expected"), [("yes", True), ("no", False), (None, False)])
async def test_can_be_drill_when_asked_then_only_where_the_server_says_so(
    fault_injection: str | None, expected: bool
) -> None:
    async with client_of(fault_injection=fault_injection) as client:
        assert await can_be_drill(client) is expected
