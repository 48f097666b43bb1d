"""The shadow executor passes what every executor passes."""

from engine.executor.protocol import Executor
from tests.kit.executor_contract import ExecutorContract
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities


class TestShadowExecutor(ExecutorContract):
    def make_executor(self, *, page_size: int, pool_pages: int, num_rows: int) -> Executor:
        capabilities = shadow_capabilities(page_size=page_size, pool_pages=pool_pages, num_rows=num_rows)
        return ShadowExecutor(capabilities)
