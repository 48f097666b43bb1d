"""Forwards that are to go wrong: which of them do, and when that ends."""

import threading

import pytest
import torch

from engine.executor.device_faults import DeviceFaults, ForwardDrill, ForwardFault
from engine.executor.tampering import ForwardBroken, tamper_of

FOREVER_S = 600.0


def hits(faults: DeviceFaults, forwards: int) -> list[bool]:
    return [faults.take(num_samples=1) is not None for _ in range(forwards)]


def test_take_when_nothing_is_armed_then_no_forward_goes_wrong() -> None:
    assert hits(DeviceFaults(), 3) == [False] * 3


def test_take_when_armed_without_a_count_then_all_go_wrong_until_something_else_is_armed() -> None:
    faults = DeviceFaults()
    faults.arm(ForwardDrill(ForwardFault.RAISE))
    assert hits(faults, 3) == [True] * 3
    faults.arm(None)
    assert hits(faults, 3) == [False] * 3


def test_take_when_armed_with_a_count_then_so_many_go_wrong_and_it_is_over() -> None:
    faults = DeviceFaults()
    faults.arm(ForwardDrill(ForwardFault.NAN, count=2))
    assert hits(faults, 4) == [True, True, False, False]
    assert faults.armed is None


def test_take_when_only_each_third_is_to_go_wrong_then_so_many_of_those_do() -> None:
    faults = DeviceFaults()
    faults.arm(ForwardDrill(ForwardFault.RAISE, count=2, every=3))
    assert hits(faults, 9) == [False, False, True, False, False, True, False, False, False]


def test_take_when_a_forward_samples_nothing_then_a_bad_token_waits_for_one_that_does() -> None:
    faults = DeviceFaults()
    drill = ForwardDrill(ForwardFault.BAD_TOKEN, count=1)
    faults.arm(drill)
    assert faults.take(num_samples=0) is None
    assert faults.take(num_samples=1) is drill


def test_take_when_it_sleeps_and_something_else_is_armed_then_it_goes_on_at_once() -> None:
    faults = DeviceFaults()
    faults.arm(ForwardDrill(ForwardFault.SLEEP, seconds=FOREVER_S, count=1))
    taken: list[ForwardDrill | None] = []
    sleeper = threading.Thread(target=lambda: taken.append(faults.take(num_samples=1)), daemon=True)
    sleeper.start()
    while faults.armed is not None:  # taken: it sleeps, or is about to, with the lock in its hands
        pass
    faults.arm(None)
    sleeper.join(10)
    assert not sleeper.is_alive()
    assert len(taken) == 1


@pytest.mark.parametrize("drill", [{"count": -1}, {"every": 0}, {"every": -3}])
def test_drill_when_it_can_not_be_then_refused(drill: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        ForwardDrill(ForwardFault.RAISE, count=drill.get("count", 0), every=drill.get("every", 1))
    with pytest.raises(AssertionError):
        ForwardDrill(ForwardFault.SLEEP, seconds=-1.0)


def test_tamper_when_asked_for_each_fault_then_only_those_in_the_middle_of_a_forward_have_one() -> None:
    hidden = torch.ones(2, 3)
    to_nan = tamper_of(ForwardDrill(ForwardFault.NAN))
    assert to_nan is not None
    assert torch.isnan(to_nan(hidden)).all()
    assert to_nan(hidden).shape == hidden.shape
    for fault, expected in ((ForwardFault.RAISE, ForwardBroken), (ForwardFault.DIE, SystemExit)):
        tamper = tamper_of(ForwardDrill(fault))
        assert tamper is not None
        with pytest.raises(expected, match="planted"):
            tamper(hidden)
    assert tamper_of(ForwardDrill(ForwardFault.SLEEP)) is None
    assert tamper_of(ForwardDrill(ForwardFault.BAD_TOKEN)) is None
