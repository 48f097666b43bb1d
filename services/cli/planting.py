"""Has a server break something, and says what was broken and where to look next."""

import sys

import grpc

from services.cli.arguments import DEFAULT_TARGET
from services.cli.explain import FLAGS
from services.cli.fault_kinds import ENDING, KINDS
from services.client import TenureError, UnitHistory
from services.client.faults import FaultOrder, plant_fault
from services.client.pools import name_unit

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
    if order.kind == "none":
        return "planted none: no forward goes wrong on purpose any more"
    what = _describe(order)
    if unit is not None:
        name = name_unit(unit.pool, unit.unit)
        owner = str(unit.owner)
        what = f"{name}, which {'is free' if owner == 'free' else f'belongs to {owner}'}: {what}"
    return f"planted {order.kind}: {what}\nnext: {_tell_next(order, unit, at)}"


def _tell_next(order: FaultOrder, unit: UnitHistory | None, at: str) -> str:
    """What can be done, and seen, while and after it goes wrong."""
    if order.kind in ENDING:
        needs = "" if unit is not None else "a turn, for it goes wrong when one runs; then "
        return f"{needs}nothing answers any more: its log has the dump, and it ends with exit code 1"
    if order.kind == "loop-blocked":
        return f"tenure health on its health port, and when the {order.seconds:g} s are over tenure incidents{at}"
    if order.kind == "interpreter-held":
        return f"nothing answers for {order.seconds:g} s, not even its health port; then its log: event=process_paused"
    if unit is not None:
        return f"tenure explain {unit.unit}{FLAGS[unit.pool]}{at}"
    return f"a turn, for it goes wrong when one runs; then tenure incidents{at}{_tell_undoing(order, at)}"


def _tell_undoing(order: FaultOrder, at: str) -> str:
    """A count of forwards that go wrong ends by itself."""
    if order.count == 1:
        return ""
    return f", and {'afterwards' if order.count == 0 else 'to end it earlier'} tenure plant none{at}"


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
