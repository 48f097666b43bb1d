"""Has a server that was started with --fault-injection break something, by the interface itself."""

from grpc import aio

from protos.v1 import faults_pb2, faults_pb2_grpc
from services.client.errors import answer


async def plant_fault(target: str, request: faults_pb2.PlantRequest) -> faults_pb2.PlantResponse:
    """Raises TenureError."""
    async with aio.insecure_channel(target) as channel:
        return await answer(faults_pb2_grpc.FaultsStub(channel).Plant(request))
