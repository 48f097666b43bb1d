"""What a caller may have broken, and what is said to one that asks for something else."""

import asyncio
import math
import threading
import time
from typing import cast

import grpc
import pytest
from grpc import aio

from engine.core.errors import Refusal, RefusalReason
from engine.core.faults import Fault
from engine.core.ownership import FREE, PoolKind
from engine.core.provenance import UnitHistory
from engine.executor.device_faults import DeviceFaults, ForwardDrill, ForwardFault
from engine.runtime.handle import EngineHandle
from protos.v1 import faults_pb2, ownership_pb2
from services.backend import Backend, BackendCell
from services.errors import CallError
from services.faults import FaultsServicer, block_loop, hold_interpreter
from services.tokenization.tokenizer import Tokenizer

NO_CONTEXT = cast("aio.ServicerContext[faults_pb2.PlantRequest, faults_pb2.PlantResponse]", None)
FORWARD_KINDS = [
    (faults_pb2.FAULT_KIND_FORWARD_SLEEPS, ForwardFault.SLEEP),
    (faults_pb2.FAULT_KIND_FORWARD_RAISES, ForwardFault.RAISE),
    (faults_pb2.FAULT_KIND_FORWARD_NAN, ForwardFault.NAN),
    (faults_pb2.FAULT_KIND_FORWARD_BAD_TOKEN, ForwardFault.BAD_TOKEN),
    (faults_pb2.FAULT_KIND_EXECUTOR_DIES, ForwardFault.DIE),
]


class Engine:
    """Of an `EngineHandle`, what plants faults."""

    def __init__(self) -> None:
        self.planted: list[Fault] = []

    async def plant(self, fault: Fault) -> UnitHistory:
        self.planted.append(fault)
        return UnitHistory(PoolKind.FULL, 7, FREE, ())


def filled_cell(engine: Engine | None = None, faults: DeviceFaults | None = None) -> BackendCell:
    cell = BackendCell()
    cell.fill(Backend(cast("EngineHandle", engine or Engine()), cast("Tokenizer", None), None, device_faults=faults))
    return cell


async def plant(
    servicer: FaultsServicer,
    kind: faults_pb2.FaultKind.ValueType,
    *,
    seconds: float = 0.0,
    count: int = 0,
    every: int = 0,
) -> faults_pb2.PlantResponse:
    request = faults_pb2.PlantRequest(kind=kind, seconds=seconds, count=count, every=every)
    return await servicer.Plant(request, NO_CONTEXT)


async def test_plant_when_it_is_of_the_books_then_the_engine_breaks_them_and_the_page_is_told() -> None:
    engine = Engine()
    response = await plant(FaultsServicer(filled_cell(engine)), faults_pb2.FAULT_KIND_DOUBLE_OWNER)
    assert engine.planted == [Fault.DOUBLE_OWNER]
    assert (response.history.unit, response.history.pool) == (7, ownership_pb2.POOL_KIND_FULL)


@pytest.mark.parametrize(("kind", "fault"), FORWARD_KINDS)
async def test_plant_when_it_is_of_forwards_then_the_executor_is_armed_and_no_page_is_told(
    kind: faults_pb2.FaultKind.ValueType, fault: ForwardFault
) -> None:
    faults = DeviceFaults()
    response = await plant(FaultsServicer(filled_cell(faults=faults)), kind, seconds=2.5, count=3, every=33)
    expected_s = 2.5 if fault is ForwardFault.SLEEP else 0.0
    assert faults.armed == ForwardDrill(fault, expected_s, 3, 33)
    assert not response.HasField("history")


async def test_plant_when_each_is_not_said_then_every_one() -> None:
    faults = DeviceFaults()
    await plant(FaultsServicer(filled_cell(faults=faults)), faults_pb2.FAULT_KIND_FORWARD_RAISES)
    assert faults.armed == ForwardDrill(ForwardFault.RAISE, count=0, every=1)


async def test_plant_when_none_then_nothing_is_armed_any_more() -> None:
    faults = DeviceFaults()
    faults.arm(ForwardDrill(ForwardFault.NAN))
    response = await plant(FaultsServicer(filled_cell(faults=faults)), faults_pb2.FAULT_KIND_NONE)
    assert faults.armed is None
    assert not response.HasField("history")
    await plant(FaultsServicer(filled_cell()), faults_pb2.FAULT_KIND_NONE)


@pytest.mark.parametrize("kind", [kind for kind, _ in FORWARD_KINDS])
async def test_plant_when_the_executor_takes_no_faults_then_refused(kind: faults_pb2.FaultKind.ValueType) -> None:
    with pytest.raises(Refusal, match="takes no faults") as refused:
        await plant(FaultsServicer(filled_cell()), kind, seconds=1)
    assert (refused.value.reason, refused.value.field) == (RefusalReason.FAULT_IMPOSSIBLE, "fault")


@pytest.mark.parametrize("kind", [faults_pb2.FAULT_KIND_LEAK, faults_pb2.FAULT_KIND_FORWARD_RAISES])
async def test_plant_when_the_model_still_loads_then_told_so(kind: faults_pb2.FaultKind.ValueType) -> None:
    with pytest.raises(CallError) as caught:
        await plant(FaultsServicer(BackendCell()), kind)
    assert caught.value.problem.code is grpc.StatusCode.UNAVAILABLE


NEEDS_SECONDS = (
    faults_pb2.FAULT_KIND_FORWARD_SLEEPS,
    faults_pb2.FAULT_KIND_LOOP_BLOCKED,
    faults_pb2.FAULT_KIND_INTERPRETER_HELD,
)


@pytest.mark.parametrize("kind", NEEDS_SECONDS)
@pytest.mark.parametrize("seconds", [0.0, -1.0, 600.5, math.inf, math.nan])
async def test_plant_when_the_seconds_can_not_be_then_named(
    kind: faults_pb2.FaultKind.ValueType, seconds: float
) -> None:
    faults = DeviceFaults()
    with pytest.raises(CallError) as caught:
        await plant(FaultsServicer(filled_cell(faults=faults)), kind, seconds=seconds)
    problem = caught.value.problem
    assert (problem.code, problem.field_name) == (grpc.StatusCode.INVALID_ARGUMENT, "seconds")
    assert problem.metadata["limit"] == "600.0"
    assert faults.armed is None


@pytest.mark.parametrize(("count", "every", "field"), [(-1, 0, "count"), (0, -5, "every")])
async def test_plant_when_a_number_is_below_0_then_named(count: int, every: int, field: str) -> None:
    faults = DeviceFaults()
    with pytest.raises(CallError) as caught:
        await plant(
            FaultsServicer(filled_cell(faults=faults)), faults_pb2.FAULT_KIND_FORWARD_NAN, count=count, every=every
        )
    assert (caught.value.problem.code, caught.value.problem.field_name) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert faults.armed is None


@pytest.mark.parametrize("kind", [0, 99])
async def test_plant_when_the_kind_is_unknown_then_told_which_there_are(kind: faults_pb2.FaultKind.ValueType) -> None:
    with pytest.raises(CallError, match="FAULT_KIND_INTERPRETER_HELD") as caught:
        await plant(FaultsServicer(filled_cell(faults=DeviceFaults())), kind)
    assert caught.value.problem.field_name == "kind"


async def test_plant_when_the_loop_is_to_be_blocked_then_only_after_the_answer() -> None:
    before_s = time.monotonic()
    await plant(FaultsServicer(BackendCell()), faults_pb2.FAULT_KIND_LOOP_BLOCKED, seconds=0.2)
    answered_s = time.monotonic()
    come_round = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.06, come_round.set_result, None)  # just behind the block
    await come_round
    assert answered_s - before_s < 0.2
    assert time.monotonic() - before_s >= 0.25


async def test_plant_when_the_interpreter_is_to_be_held_then_only_after_the_answer() -> None:
    before_s = time.monotonic()
    await plant(FaultsServicer(BackendCell()), faults_pb2.FAULT_KIND_INTERPRETER_HELD, seconds=0.2)
    answered_s = time.monotonic()
    come_round = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.06, come_round.set_result, None)
    await come_round
    assert answered_s - before_s < 0.2
    assert time.monotonic() - before_s >= 0.25


class Witness:
    """A thread that looks at the clock as often as it may."""

    def __init__(self) -> None:
        self.looks = 0
        self.longest_gap_s = 0.0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._is_over:
            now_s = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - looked_s)
            self.looks, looked_s = self.looks + 1, now_s

    def end(self) -> None:
        self._is_over = True
        self._thread.join()


def test_block_loop_when_another_thread_runs_then_it_runs_on() -> None:
    witness = Witness()
    try:
        before, began_s = witness.looks, time.monotonic()
        block_loop(0.3)
        assert time.monotonic() - began_s >= 0.3
        assert witness.looks > before + 100
    finally:
        witness.end()


def test_hold_interpreter_when_another_thread_runs_then_it_stands_still_all_the_while() -> None:
    witness = Witness()
    try:
        hold_interpreter(0.3)
    finally:
        witness.end()
    assert witness.longest_gap_s >= 0.29
