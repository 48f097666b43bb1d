"""The shadow device behind the `Executor` Protocol, for tests of the runtime: torch-free, with delays and failures."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.core.ownership import PoolKind
from engine.core.plan import StepOutcome, StepPlan
from engine.executor.protocol import Capabilities
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel

__all__ = ["Faults", "ShadowDevice", "ShadowExecutor", "ShadowModel", "shadow_capabilities"]


@dataclass(slots=True)
class Faults:
    """What goes wrong, and how slow it is. May be changed while plans are out."""

    delay_s: Callable[[StepPlan], float] = field(default=lambda _plan: 0.0)
    """Seconds from when a plan could run to its answer; 0 answers in the loop's next round."""
    failing_steps: dict[int, str] = field(default_factory=dict)
    """Step number → reason of its StepFailure."""
    lost: Exception | None = None
    """Once set, futures carry this exception: the executor is gone."""
    prepare_delay_s: float = 0.0
    """Seconds that `prepare` takes; 0 answers in the loop's next round."""


def shadow_capabilities(
    *,
    page_size: int = 4,
    pool_pages: int = 64,
    num_rows: int = 8,
    context_len: int = 256,
    vocab_size: int = 256,
    max_in_flight: int = 2,
    window: int | None = None,
    swa_pages: int = 0,
    state_slots: int = 0,
) -> Capabilities:
    """Sizes small enough to run out in a test."""
    kinds = {PoolKind.FULL: pool_pages, PoolKind.SWA: swa_pages, PoolKind.MAMBA: state_slots}
    return Capabilities(
        name="shadow",
        pool_kinds=tuple(kind for kind, size in kinds.items() if size),
        page_size=page_size,
        pool_pages=pool_pages,
        num_rows=num_rows,
        context_len=context_len,
        vocab_size=vocab_size,
        max_in_flight=max_in_flight,
        window=window,
        swa_pages=swa_pages,
        state_slots=state_slots,
    )


class ShadowExecutor:
    """An `Executor` that answers on the loop that submits, in order, one plan after the other.

    `device.violations` tells what broke the executor's contract. `hold` and `let_go` keep plans in flight at will.
    """

    def __init__(
        self, capabilities: Capabilities, *, model: ShadowModel | None = None, faults: Faults | None = None
    ) -> None:
        self._capabilities = capabilities
        self.faults = faults if faults is not None else Faults()
        self.device = ShadowDevice(
            model if model is not None else ShadowModel(capabilities.vocab_size),
            page_size=capabilities.page_size,
            pool_pages=capabilities.pool_pages,
            num_rows=capabilities.num_rows,
            swa_pages=capabilities.swa_pages,
            state_slots=capabilities.state_slots,
        )
        self.submitted: list[StepPlan] = []
        """Every plan so far. Its page tables are the core's live rows: read nothing but lengths from them."""
        self._pending: deque[tuple[StepPlan, asyncio.Future[StepOutcome]]] = deque()
        self._timer: asyncio.Handle | None = None
        self._preparing: set[asyncio.Future[None]] = set()
        self._is_held = False
        self._is_closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def num_in_flight(self) -> int:
        """Plans submitted and not answered."""
        return len(self._pending)

    def prepare(self) -> asyncio.Future[None]:
        """There is nothing to make; it takes `faults.prepare_delay_s`. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError("the executor is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._preparing.add(future)
        loop.call_later(self.faults.prepare_delay_s, self._end_preparing, future)
        return future

    def submit(self, plan: StepPlan) -> asyncio.Future[StepOutcome]:
        """Queues one forward. Raises RuntimeError once closed, AssertionError for a plan that breaks the contract."""
        if self._is_closed:
            raise RuntimeError("the executor is closed")
        depth = self._capabilities.max_in_flight
        assert len(self._pending) < depth, f"{len(self._pending)} plans in flight, at most {depth}"
        self.device.submit(plan)
        future: asyncio.Future[StepOutcome] = asyncio.get_running_loop().create_future()
        self.submitted.append(plan)
        self._pending.append((plan, future))
        self._schedule()
        return future

    def hold(self) -> None:
        """Answers nothing until `let_go`."""
        self._is_held = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def let_go(self) -> None:
        """Goes on answering."""
        self._is_held = False
        self._schedule()

    def close(self) -> None:
        """Answers what was submitted, then stops. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in tuple(self._preparing):
            self._end_preparing(future)
        while self._pending:
            self._answer_oldest()

    def _end_preparing(self, future: asyncio.Future[None]) -> None:
        self._preparing.discard(future)
        if future.done():
            return
        if self.faults.lost is not None:
            future.set_exception(self.faults.lost)
        else:
            future.set_result(None)

    def _schedule(self) -> None:
        if self._timer is not None or self._is_held or not self._pending:
            return
        delay_s = self.faults.delay_s(self._pending[0][0])
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s, self._tick) if delay_s > 0 else loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._answer_oldest()
        self._schedule()

    def _answer_oldest(self) -> None:
        plan, future = self._pending.popleft()
        reason = self.faults.failing_steps.get(plan.step)
        is_lost = self.faults.lost is not None
        outcome = self.device.answer() if reason is None and not is_lost else self.device.fail(reason or "lost")
        if future.done():
            return
        if self.faults.lost is not None:
            future.set_exception(self.faults.lost)
        else:
            future.set_result(outcome)
