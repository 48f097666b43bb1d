"""`tenure.v1.Faults`: breaks the server on purpose. Registered with --fault-injection only."""

import asyncio
import ctypes
import logging
import time
from collections.abc import Callable

from grpc import aio

from engine.core.errors import Refusal, RefusalReason
from engine.core.faults import Fault
from engine.executor.device_faults import ForwardDrill, ForwardFault
from protos.v1 import faults_pb2, faults_pb2_grpc
from services.admin_codec import decode_fault, encode_history
from services.backend import BackendCell
from services.errors import invalid_field

_log = logging.getLogger(__name__)

SECONDS_MAX = 600.0
ANSWER_S = 0.05
"""Between the answer and what keeps the loop or the interpreter from running: it has to be on its way by then."""

PROCESS_FAULTS = (faults_pb2.FAULT_KIND_LOOP_BLOCKED, faults_pb2.FAULT_KIND_INTERPRETER_HELD)


class FaultsServicer(faults_pb2_grpc.FaultsServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend

    async def Plant(
        self,
        request: faults_pb2.PlantRequest,
        context: aio.ServicerContext[faults_pb2.PlantRequest, faults_pb2.PlantResponse],
    ) -> faults_pb2.PlantResponse:
        response = await self._plant(request)
        _log.warning("event=fault_planted kind=%s: on purpose, by a caller", faults_pb2.FaultKind.Name(request.kind))
        return response

    async def _plant(self, request: faults_pb2.PlantRequest) -> faults_pb2.PlantResponse:
        if request.kind == faults_pb2.FAULT_KIND_NONE:
            self._arm(None)
            return faults_pb2.PlantResponse()
        if request.kind in PROCESS_FAULTS:
            _hold_up(request.kind, _read_seconds(request))
            return faults_pb2.PlantResponse()
        fault = decode_fault(request.kind)
        match fault:
            case None:
                known = ", ".join(name for name, number in faults_pb2.FaultKind.items() if number)
                raise invalid_field("kind", f"is no fault that can be planted; known are {known}", value=request.kind)
            case Fault():
                history = await self._backend.require().engine.plant(fault)
                return faults_pb2.PlantResponse(history=encode_history(history))
            case ForwardFault():
                self._arm(_read_drill(fault, request))
                return faults_pb2.PlantResponse()

    def _arm(self, drill: ForwardDrill | None) -> None:
        """Raises Refusal where forwards have no such place; nothing is disarmed there as well as anywhere."""
        device_faults = self._backend.require().device_faults  # before that there are no forwards
        if device_faults is not None:
            device_faults.arm(drill)
        elif drill is not None:
            message = "no forward can be made to go wrong: this server's executor takes no faults"
            raise Refusal(RefusalReason.FAULT_IMPOSSIBLE, message, field="fault", value=drill.fault)


def _read_drill(fault: ForwardFault, request: faults_pb2.PlantRequest) -> ForwardDrill:
    seconds = _read_seconds(request) if fault is ForwardFault.SLEEP else 0.0
    for name, value in (("count", request.count), ("every", request.every)):
        if value < 0:
            raise invalid_field(name, f"{value} is below 0", value=value, limit=0)
    return ForwardDrill(fault, seconds, request.count, max(1, request.every))


def _read_seconds(request: faults_pb2.PlantRequest) -> float:
    if not 0 < request.seconds <= SECONDS_MAX:
        message = f"{request.seconds:g} is not above 0 and at most {SECONDS_MAX:g}"
        raise invalid_field("seconds", message, value=request.seconds, limit=SECONDS_MAX)
    return request.seconds


def _hold_up(kind: faults_pb2.FaultKind.ValueType, seconds: float) -> None:
    """A moment from now, when the answer is on its way."""
    hold: Callable[[float], None] = hold_interpreter if kind == faults_pb2.FAULT_KIND_INTERPRETER_HELD else block_loop
    asyncio.get_running_loop().call_later(ANSWER_S, hold, seconds)


def block_loop(seconds: float) -> None:
    """Computes, in Python: the caller's thread does nothing else meanwhile, and the others have to share with it."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


def hold_interpreter(seconds: float) -> None:
    """Sleeps in C without letting go of the interpreter: no Python runs in any thread meanwhile."""
    sleep_us = ctypes.PyDLL(None).usleep
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:  # a signal ends it early
        sleep_us(ctypes.c_uint(int(left_s * 1e6) + 1))
