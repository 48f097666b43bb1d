"""The shadow device with windows and states: a page or a state of any other history or length shows."""

from array import array
from collections.abc import Sequence

from engine.core.ids import Rid, StepNo, pack_ids
from engine.core.ownership import PoolKind
from engine.core.plan import PlanRow, StepPlan
from tests.kit.shadow_device import NO_DIGEST, ShadowDevice
from tests.kit.shadow_model import ShadowModel

MODEL = ShadowModel(vocab_size=1000)
PAGE_SIZE = 4
WINDOW = 3
IDS = [11, 12, 13, 14, 15, 16, 17]


def make_device() -> ShadowDevice:
    return ShadowDevice(MODEL, page_size=PAGE_SIZE, pool_pages=16, num_rows=4, swa_pages=16, state_slots=8)


def run(
    device: ShadowDevice,
    step: int,
    start_len: int,
    stop_len: int,
    *,
    swa_pages: Sequence[int] = (5, 6),
    states: tuple[int, int],
) -> tuple[int, ...]:
    """Runs a step of one row over `IDS`, whose pages are 2 and 3. `states`: that it reads, and that it writes."""
    row = PlanRow(
        rid=Rid(1),
        epoch=0,
        req_pool_idx=1,
        start_len=start_len,
        query_len=stop_len - start_len,
        input_ids=pack_ids(IDS[start_len:stop_len]),
        uses_sampled=False,
        num_samples=1,
        page_table=array("i", [2, 3]),
        swa_table=array("i", swa_pages),
        state_read=states[0],
        state_write=states[1],
    )
    plan = StepPlan(StepNo(step), PAGE_SIZE, (row,), window=WINDOW, has_states=True)
    return device.run(plan).sampled[0]


def test_run_when_windows_and_state_are_right_then_the_token_is() -> None:
    device = make_device()
    run(device, 1, 0, 5, states=(0, 1))
    assert run(device, 2, 5, 7, states=(1, 2)) == (MODEL.next_id(MODEL.digest(IDS)),)
    assert device.violations == []


def test_run_when_a_page_before_the_window_is_gone_then_nobody_misses_it() -> None:
    device = make_device()
    run(device, 1, 0, 6, states=(0, 1))
    device.poison([5], PoolKind.SWA)
    run(device, 2, 6, 7, swa_pages=(0, 6), states=(1, 2))
    assert device.violations == []


def test_run_when_a_page_of_the_window_is_gone_then_says_so() -> None:
    device = make_device()
    run(device, 1, 0, 5, states=(0, 1))
    device.poison([5], PoolKind.SWA)
    assert run(device, 2, 5, 7, states=(1, 2)) != (MODEL.next_id(MODEL.digest(IDS)),)
    assert device.violations == ["rid 1: position 3 on swa page 5 is poisoned"]


def test_run_when_the_state_is_of_another_length_then_says_so() -> None:
    device = make_device()
    run(device, 1, 0, 4, states=(0, 1))
    run(device, 2, 4, 5, states=(1, 2))
    assert run(device, 3, 5, 7, states=(1, 3)) != (MODEL.next_id(MODEL.digest(IDS)),)
    assert device.violations == ["rid 1: starts at 5 from state 1, which is one behind 4 tokens"]


def test_run_when_the_state_is_gone_then_says_so() -> None:
    device = make_device()
    run(device, 1, 0, 5, states=(0, 1))
    device.poison([1], PoolKind.MAMBA)
    run(device, 2, 5, 7, states=(1, 2))
    assert device.violations == ["rid 1: starts at 5 from state 1, which is none"]


def test_contents_when_asked_then_are_of_the_history_that_was_computed() -> None:
    device = make_device()
    run(device, 1, 0, 5, states=(0, 1))
    page_digest = MODEL.digest(IDS[:4])
    assert device.digest_behind(PoolKind.FULL, 2) == device.digest_behind(PoolKind.SWA, 5) == page_digest
    assert (device.state_len(1), device.digest_behind(PoolKind.MAMBA, 1)) == (5, MODEL.digest(IDS[:5]))
    assert list(device.digests(PoolKind.SWA, [5, 6])) == [MODEL.digest(IDS[:length]) for length in range(1, 6)]
    device.poison([1], PoolKind.MAMBA)
    assert (device.state_len(1), device.digest_behind(PoolKind.MAMBA, 1)) == (None, NO_DIGEST)
