"""What runs plans for a synchronous driver: the shadow device with its books, or the real executor and its thread."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from engine.core.events import CoreEvent
from engine.core.plan import StepOutcome, StepPlan
from engine.executor.protocol import Executor
from tests.kit.book import Book
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel


class Device(Protocol):
    """Plans are submitted as they are made, and answered in order when the driver asks."""

    def observe(self, events: Sequence[CoreEvent]) -> None:
        """What the core told since the last call, before any plan that it made meanwhile is submitted."""
        ...

    def submit(self, plan: StepPlan) -> None: ...

    def answer(self) -> StepOutcome:
        """Of the oldest plan submitted."""
        ...

    def assert_sound(self) -> None:
        """Raises AssertionError for what broke the executor's contract so far."""
        ...


class ShadowBackend:
    """Every access is held against owners that are told by the event stream; freed pages are poisoned."""

    def __init__(
        self,
        model: ShadowModel,
        *,
        page_size: int,
        pool_pages: int,
        num_rows: int,
        swa_pages: int = 0,
        state_slots: int = 0,
    ) -> None:
        self._book = Book(pool_pages, num_rows, swa_pages, state_slots)
        self._device = ShadowDevice(
            model,
            page_size=page_size,
            pool_pages=pool_pages,
            num_rows=num_rows,
            swa_pages=swa_pages,
            state_slots=state_slots,
            book=self._book,
        )

    def observe(self, events: Sequence[CoreEvent]) -> None:
        self._book.replay(events)
        self._device.observe(events)

    def submit(self, plan: StepPlan) -> None:
        self._device.submit(plan)

    def answer(self) -> StepOutcome:
        return self._device.answer()

    def assert_sound(self) -> None:
        assert not self._device.violations, self._device.violations[:3]


class ExecutorBackend:
    """A real `Executor`, prepared, with a loop of its own: its thread computes while the driver goes on."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loop = asyncio.new_event_loop()
        self._answers: deque[asyncio.Future[StepOutcome]] = deque()
        self._loop.run_until_complete(self._prepare())

    async def _prepare(self) -> None:
        await self._executor.prepare()

    def observe(self, events: Sequence[CoreEvent]) -> None:
        """A real device has no ears."""

    def submit(self, plan: StepPlan) -> None:
        self._answers.append(self._loop.run_until_complete(self._submit(plan)))

    async def _submit(self, plan: StepPlan) -> asyncio.Future[StepOutcome]:
        return self._executor.submit(plan)

    def answer(self) -> StepOutcome:
        return self._loop.run_until_complete(self._answers.popleft())

    def assert_sound(self) -> None:
        assert len(self._answers) <= self._executor.capabilities.max_in_flight, "more in flight than the device takes"

    def close(self) -> None:
        """Ends the executor's thread, and the loop."""
        self._executor.close()
        self._loop.close()
