"""`tenure.v1.Admin`: what an operator looks at."""

from grpc import aio

from protos.v1 import admin_pb2, admin_pb2_grpc
from services.backend import BackendCell
from services.codec import encode_pools


class AdminServicer(admin_pb2_grpc.AdminServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend

    async def PoolStats(  # noqa: N802 - the name in the proto
        self,
        request: admin_pb2.PoolStatsRequest,
        context: aio.ServicerContext[admin_pb2.PoolStatsRequest, admin_pb2.PoolStatsResponse],
    ) -> admin_pb2.PoolStatsResponse:
        return encode_pools(await self._backend.require().engine.snapshot())
