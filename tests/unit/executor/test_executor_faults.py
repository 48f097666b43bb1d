"""What the executor answers when forwards go wrong, and when its thread dies."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engine.core.plan import StepFailure, StepOutcome, StepResult
from engine.executor.device_faults import DeviceFaults, ForwardDrill, ForwardFault
from engine.executor.protocol import ExecutorLost
from engine.executor.torch_executor import TorchExecutor
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_runner

PAGE_SIZE = 4
FOREVER_S = 600.0


@dataclass(slots=True)
class Rig:
    executor: TorchExecutor
    faults: DeviceFaults
    step: int = 0

    def submit(self, sequence: PagedSequence | None = None) -> asyncio.Future[StepOutcome]:
        """Another prompt of two tokens in row 1, or the next decode of `sequence`."""
        self.step += 1
        row = PagedSequence(1, [1, 2]).chunk([5, 6]) if sequence is None else sequence.decode()
        return self.executor.submit(make_plan(self.step, PAGE_SIZE, [row]))


@pytest.fixture
def rig() -> Iterator[Rig]:
    faults = DeviceFaults()
    executor = TorchExecutor(tiny_llama_runner(page_size=PAGE_SIZE, pool_pages=32, num_rows=4), 1, faults)
    yield Rig(executor, faults)
    faults.arm(None)
    executor.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(ForwardFault.RAISE, "ForwardBroken: planted"), (ForwardFault.NAN, "row 0: hidden states that are not finite")],
)
async def test_forward_when_it_goes_wrong_then_a_failure_with_the_reason_and_the_next_is_as_ever(
    rig: Rig, fault: ForwardFault, reason: str
) -> None:
    expected = await rig.submit()
    assert isinstance(expected, StepResult)
    rig.faults.arm(ForwardDrill(fault, count=1))
    failure = await rig.submit()
    assert isinstance(failure, StepFailure)
    assert (failure.step, reason in failure.reason) == (2, True)
    after = await rig.submit()
    assert isinstance(after, StepResult)
    assert after.sampled == expected.sampled


async def test_forward_when_it_chooses_a_bad_token_then_the_id_is_outside_the_vocabulary(rig: Rig) -> None:
    rig.faults.arm(ForwardDrill(ForwardFault.BAD_TOKEN, count=1))
    outcome = await rig.submit()
    assert isinstance(outcome, StepResult)
    assert outcome.sampled == ((tiny_llama_config().vocab_size,),)
    assert isinstance(await rig.submit(), StepResult)


@pytest.mark.parametrize("fault", [ForwardFault.RAISE, ForwardFault.NAN, ForwardFault.BAD_TOKEN])
async def test_forward_when_it_goes_wrong_and_the_next_waits_for_its_ids_then_the_next_still_runs(
    rig: Rig, fault: ForwardFault
) -> None:
    rig.faults.arm(ForwardDrill(fault, count=1))
    sequence = PagedSequence(1, [1, 2])
    first = rig.executor.submit(make_plan(1, PAGE_SIZE, [sequence.chunk([5, 6])]))
    other = PagedSequence(2, [3, 4])
    second = rig.executor.submit(make_plan(2, PAGE_SIZE, [sequence.decode(), other.chunk([5, 6])]))
    await first
    outcome = await second
    assert isinstance(outcome, StepResult), "a turn of the second step alone is well, and must not end with the others"
    rig.step = 2
    alone = await rig.submit()
    assert isinstance(alone, StepResult)
    assert outcome.sampled[1] == alone.sampled[0]


async def test_forward_when_it_sleeps_then_the_loop_runs_on_and_it_is_answered_as_ever(rig: Rig) -> None:
    expected = await rig.submit()
    assert isinstance(expected, StepResult)
    rig.faults.arm(ForwardDrill(ForwardFault.SLEEP, seconds=FOREVER_S, count=1))
    future = rig.submit()
    while rig.faults.armed is not None:  # noqa: ASYNC110 - the loop turns while the executor's thread sleeps
        await asyncio.sleep(0)
    assert not future.done()
    rig.faults.arm(None)
    outcome = await future
    assert isinstance(outcome, StepResult)
    assert outcome.sampled == expected.sampled


async def test_prepare_when_forwards_are_to_go_wrong_then_it_is_none_of_them(rig: Rig) -> None:
    rig.faults.arm(ForwardDrill(ForwardFault.RAISE, count=1))
    await rig.executor.prepare()
    assert isinstance(await rig.submit(), StepFailure)


async def test_die_when_plans_wait_then_all_and_all_later_ones_are_lost_with_the_cause_and_close_ends(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(await rig.submit(), StepResult)
    rig.faults.arm(ForwardDrill(ForwardFault.DIE))
    futures = [rig.submit(), rig.submit()]
    for future in futures:
        with pytest.raises(ExecutorLost, match="SystemExit: planted: the executor's thread was to die"):
            await future
    later = rig.submit()
    assert later.done(), "there is nothing to wait for"
    with pytest.raises(ExecutorLost, match="SystemExit"):
        await later
    with pytest.raises(ExecutorLost, match="SystemExit"):
        await rig.executor.prepare()
    assert caplog.text.count("event=executor_lost reason=SystemExit") == 1
    rig.executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        rig.submit()


async def test_die_when_closed_meanwhile_then_what_was_submitted_is_lost_and_close_ends(rig: Rig) -> None:
    rig.faults.arm(ForwardDrill(ForwardFault.DIE))
    futures = [rig.submit(), rig.submit()]
    rig.executor.close()
    for future in futures:
        with pytest.raises(ExecutorLost):
            await future


async def test_die_when_an_answer_can_not_be_given_then_the_next_ones_are_lost_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something outside of the guarded part of a forward breaks."""

    def refuse(_callback: object, *_arguments: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("the loop is open, and says no")

    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", refuse)
    futures = [rig.submit(), rig.submit()]
    for future in futures:
        with pytest.raises(ExecutorLost, match="AssertionError: a running loop refused an answer"):
            await future


async def test_executor_when_made_without_faults_then_forwards_run(rig: Rig) -> None:
    plain = TorchExecutor(tiny_llama_runner(page_size=PAGE_SIZE, pool_pages=32, num_rows=4), threads=1)
    try:
        row = PagedSequence(1, [1, 2]).chunk([5, 6])
        assert await plain.submit(make_plan(1, PAGE_SIZE, [row])) == await rig.submit()
    finally:
        plain.close()
