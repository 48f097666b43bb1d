"""Has a server that was started with --fault-injection break something. Not a part of the public client."""

from dataclasses import dataclass

from grpc import aio

from protos.v1 import faults_pb2, faults_pb2_grpc
from services.client.asking import Asking
from services.client.inspection import UnitHistory, decode_unit
from services.client.options import set_field
from services.limits import client_options

FAULT_KINDS: dict[str, faults_pb2.FaultKind.ValueType] = {
    name.removeprefix("FAULT_KIND_").lower().replace("_", "-"): number
    for name, number in faults_pb2.FaultKind.items()
    if number != faults_pb2.FAULT_KIND_UNSPECIFIED
}
"""Names as in `forward-sleeps`."""


@dataclass(frozen=True, slots=True)
class FaultOrder:
    """What to break; numbers as in the interface."""

    kind: str
    """One of FAULT_KINDS."""
    seconds: float = 0.0
    count: int = 0
    every: int = 0


async def plant_fault(target: str, order: FaultOrder) -> UnitHistory | None:
    """The page that was broken, where one is concerned. Raises TenureError (UNIMPLEMENTED: it lets nobody do that)."""
    request = faults_pb2.PlantRequest(kind=FAULT_KINDS[order.kind])
    for name, value in (("seconds", order.seconds), ("count", order.count), ("every", order.every)):
        set_field(request, name, value)
    async with aio.insecure_channel(target, options=client_options()) as channel:
        response = await Asking(channel).ask("plant", faults_pb2_grpc.FaultsStub(channel).Plant, request)
    return decode_unit(response.history) if response.HasField("history") else None
