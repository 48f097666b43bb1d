"""The shadow executor passes what every executor passes."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kit.executor_contract import ExecutorContract
from tests.kit.executor_driver import Driver
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities


class TestShadowExecutor(ExecutorContract):
    def make_executor(self, *, page_size: int, pool_pages: int, num_rows: int) -> ShadowExecutor:
        capabilities = shadow_capabilities(page_size=page_size, pool_pages=pool_pages, num_rows=num_rows)
        return ShadowExecutor(capabilities)

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """No test of the contract may break the contract itself: the device finds nothing."""
        with super().driver() as driver:
            yield driver
            assert isinstance(driver.executor, ShadowExecutor)
            assert driver.executor.device.violations == []
