"""`tenure.v1.Faults`: breaks the books on purpose. Registered with --fault-injection only."""

from grpc import aio

from protos.v1 import faults_pb2, faults_pb2_grpc
from services.admin_codec import FAULTS, decode_fault, encode_history
from services.backend import BackendCell
from services.errors import invalid_field


class FaultsServicer(faults_pb2_grpc.FaultsServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend

    async def Plant(
        self,
        request: faults_pb2.PlantRequest,
        context: aio.ServicerContext[faults_pb2.PlantRequest, faults_pb2.PlantResponse],
    ) -> faults_pb2.PlantResponse:
        fault = decode_fault(request.kind)
        if fault is None:
            known = ", ".join(faults_pb2.FaultKind.Name(number) for number in FAULTS.values())
            raise invalid_field("kind", f"is no fault that can be planted; known are {known}", value=request.kind)
        history = await self._backend.require().engine.plant(fault)
        return faults_pb2.PlantResponse(history=encode_history(history))
