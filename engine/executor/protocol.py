"""The seam between the runtime and whatever runs the model."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from engine.core.ownership import PoolKind
from engine.core.plan import StepOutcome, StepPlan


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, as data. The runtime refuses by name what is not in it."""

    name: str
    """For people: model, backend and dtype, as in `SmolLM2-135M-Instruct, cpu torch float32`."""
    pool_kinds: tuple[PoolKind, ...]
    """Those that a sequence of this model has KV or state in."""
    page_size: int
    pool_pages: int
    """Pages of the full pool, the padding page 0 included."""
    num_rows: int
    """Request rows, the padding row 0 included."""
    context_len: int
    vocab_size: int
    max_in_flight: int
    """Plans that may be submitted before the oldest is answered."""
    window: int | None = None
    """Tokens of the window of its SWA layers, the current one included; None where it has none."""
    swa_pages: int = 0
    """Pages of the SWA pool, the padding page 0 included; 0 where there is none."""
    state_slots: int = 0
    """State slots of the Mamba pool, the padding slot 0 included; 0 where there is none."""

    @property
    def pool_sizes(self) -> dict[PoolKind, int]:
        """Units of each pool that there is, the padding unit 0 included, in the order in which pools are shown."""
        sizes = {
            PoolKind.FULL: self.pool_pages,
            PoolKind.SWA: self.swa_pages,
            PoolKind.MAMBA: self.state_slots,
            PoolKind.ROWS: self.num_rows,
        }
        return {kind: size for kind, size in sizes.items() if size}


class ExecutorLost(Exception):
    """What the futures carry once nothing is left that could run a plan. It stays so: only a new process helps."""


class Executor(Protocol):
    """Runs plans in the order in which they are submitted.

    The contract, which `tests/kit/executor_contract.py` holds against every implementation:
    - `submit` copies all it needs of the plan's page tables before it returns, and never blocks on the device.
    - Futures resolve in submission order, on the event loop that called `submit`, with a `StepResult`, or with a
      `StepFailure` when the forward raised. They carry an exception only when the executor itself is lost: all those
      that were not resolved then, and all later ones, carry an `ExecutorLost` that tells the cause.
    - A row with `uses_sampled` takes the id sampled for its `req_pool_idx` by the newest earlier plan that sampled
      there, the last one where that plan sampled several.
    - A row answers with one id for each of its last `num_samples` query tokens, chosen from the logits behind that
      token: each is what the row would have sampled had it ended there. KV is written for drafts too; where one was
      wrong, a later row that starts at its position writes over it, and nothing of it is left.
    - A row samples as its `Sampling` says; greedy takes the lowest id of equals, and the same seed at the same position
      draws the same randomness whatever the batch.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def prepare(self) -> asyncio.Future[None]:
        """Makes what the first forwards would otherwise have to make: kernels, graphs, thread pools.

        To be awaited before the first `submit`. Leaves nothing in the pools that could be read. The future carries
        ExecutorLost when it does not work. Raises RuntimeError once closed.
        """
        ...

    def submit(self, plan: StepPlan) -> asyncio.Future[StepOutcome]:
        """Queues one forward. Raises RuntimeError once closed. Once lost, the future has failed when it is returned."""
        ...

    def close(self) -> None:
        """Answers what was submitted, then stops. Idempotent; blocks until the worker has ended, as a lost one has."""
        ...
