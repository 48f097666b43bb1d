"""Has a server break something, and says what was broken and where to look next."""

import sys

import grpc

from services.cli.arguments import DEFAULT_TARGET
from services.cli.fault_kinds import KINDS
from services.client import TenureError, UnitHistory
from services.client.faults import FaultOrder, plant_fault

_WRONG = {
    "forward-sleeps": "it sleeps",
    "forward-raises": "it raises an error",
    "forward-nan": "its numbers are not numbers",
    "forward-bad-token": "it chooses a token that the model does not have",
}
"""Faults of forwards, of which some go wrong and others do not."""


async def plant(target: str, order: FaultOrder) -> int:
    try:
        unit = await plant_fault(target, order)
    except TenureError as error:
        if error.code is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        print(f"tenure: the server at {target} lets nobody break it: start one with --fault-injection", file=sys.stderr)
        return 1
    print(format_planted(order, unit, target))
    return 0


def format_planted(order: FaultOrder, unit: UnitHistory | None, target: str) -> str:
    """What was broken, and how to go on."""
    at = "" if target == DEFAULT_TARGET else f" --target {target}"
    if unit is not None:
        name, option = (f"row {unit.unit}", " --rows") if unit.pool == "rows" else (f"{unit.pool} page {unit.unit}", "")
        return (
            f"planted {order.kind}: {name}, which belongs to {unit.owner}: {KINDS[order.kind]}\n"
            f"next: tenure explain {unit.unit}{option}{at}"
        )
    if order.kind == "none":
        return "planted none: no forward goes wrong on purpose any more"
    undo = f", and afterwards tenure plant none{at}" if order.kind in _WRONG else ""
    return f"planted {order.kind}: {_describe(order)}\nnext: tenure incidents{at}{undo}"


def _describe(order: FaultOrder) -> str:
    if order.kind not in _WRONG:
        return KINDS[order.kind].replace("--seconds", f"{order.seconds:g} s")
    which = "each forward" if order.every <= 1 else f"one forward in {order.every}"
    if order.count > 0:
        which = f"{which}, until {order.count} went wrong"
    if order.count == 1 and order.every <= 1:
        which = "the next forward"
    length = f" for {order.seconds:g} s" if order.kind == "forward-sleeps" else ""
    return f"{which}: {_WRONG[order.kind]}{length}"
