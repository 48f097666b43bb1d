"""`tenure plant`: breaks a running server on purpose, to practise what docs/operations says.

Light: what needs gRPC is imported when it runs.
"""

import sys

from services.cli.arguments import USAGE_CODE
from services.cli.fault_kinds import KINDS, TIMED

__all__ = ["KINDS", "run_plant"]


def run_plant(target: str, kind: str, *, seconds: float | None, count: int, every: int) -> int:
    """`count` and `every` are of forwards: how many go wrong (0: all), of each so many one."""
    if kind in TIMED and seconds is None:
        print(f"tenure: --seconds: {kind} needs it: how long?", file=sys.stderr)
        return USAGE_CODE
    from services.cli.planting import plant
    from services.cli.run import run_work
    from services.client.faults import FaultOrder

    return run_work(target, plant(target, FaultOrder(kind, seconds or 0.0, count, every)))
