"""What the units of each pool are called, where people are told of one."""

from engine.core.ownership import PoolKind

UNIT_NAMES = {
    PoolKind.FULL: "page",
    PoolKind.SWA: "SWA page",
    PoolKind.MAMBA: "state",
    PoolKind.ROWS: "row",
}
"""Of one; several have an s more."""
