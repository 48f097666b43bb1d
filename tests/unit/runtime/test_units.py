"""Each pool's units have a name for people."""

from engine.core.ownership import PoolKind
from engine.runtime.units import UNIT_NAMES


def test_unit_names_when_compared_with_the_pools_then_each_has_one_of_its_own() -> None:
    assert set(UNIT_NAMES) == set(PoolKind)
    assert len(set(UNIT_NAMES.values())) == len(PoolKind)
