"""The shadow device behind the Executor Protocol: order, faults, closing."""

import asyncio

import pytest

from engine.core.ids import StepNo
from engine.core.plan import StepFailure, StepResult
from tests.kit.shadow_executor import Faults, ShadowExecutor, shadow_capabilities
from tests.unit.kit.test_shadow_device import make_plan, make_row


async def test_submit_when_two_are_out_then_both_are_answered_in_order() -> None:
    executor = ShadowExecutor(shadow_capabilities())
    done: list[int] = []
    futures = [
        executor.submit(make_plan(1, make_row([3], 0, [1]))),
        executor.submit(make_plan(2, make_row([3], 1, None))),
    ]
    for future in futures:
        future.add_done_callback(lambda answered: done.append(answered.result().step))
    outcomes = await asyncio.gather(*futures)
    assert done == [1, 2]
    assert all(isinstance(outcome, StepResult) for outcome in outcomes)
    assert executor.num_in_flight == 0
    executor.close()


async def test_submit_when_step_is_to_fail_then_answers_failure_and_goes_on() -> None:
    executor = ShadowExecutor(shadow_capabilities(), faults=Faults(failing_steps={1: "broken"}))
    assert await executor.submit(make_plan(1, make_row([3], 0, [1]))) == StepFailure(StepNo(1), "broken")
    assert isinstance(await executor.submit(make_plan(2, make_row([3], 0, [1]))), StepResult)
    executor.close()


async def test_submit_when_lost_then_future_carries_the_exception() -> None:
    executor = ShadowExecutor(shadow_capabilities(), faults=Faults(lost=OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        await executor.submit(make_plan(1, make_row([3], 0, [1])))
    executor.close()


async def test_hold_when_let_go_then_answers() -> None:
    executor = ShadowExecutor(shadow_capabilities())
    future = executor.submit(make_plan(1, make_row([3], 0, [1])))
    executor.hold()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not future.done()
    executor.let_go()
    assert isinstance(await future, StepResult)
    executor.close()


async def test_close_when_plans_are_out_then_answers_them_and_takes_no_more() -> None:
    executor = ShadowExecutor(shadow_capabilities(), faults=Faults(delay_s=lambda _plan: 3600.0))
    future = executor.submit(make_plan(1, make_row([3], 0, [1])))
    executor.close()
    executor.close()
    assert isinstance(await future, StepResult)
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(make_plan(2, make_row([3], 1, [1])))


async def test_submit_when_deeper_than_told_then_asserts() -> None:
    executor = ShadowExecutor(shadow_capabilities(max_in_flight=1))
    executor.submit(make_plan(1, make_row([3], 0, [1])))
    with pytest.raises(AssertionError, match="in flight"):
        executor.submit(make_plan(2, make_row([3], 1, [1])))
    executor.close()
