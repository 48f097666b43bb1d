"""The executor on a CPU: plans go to one thread through a queue, answers come back to the event loop in order."""

import asyncio
import itertools
import queue
import threading
from dataclasses import dataclass

import torch

from engine.core.ownership import PoolKind
from engine.core.plan import StepFailure, StepOutcome, StepPlan, StepResult
from engine.executor.batch import Batch, build_batch
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ForwardError, ModelRunner
from engine.executor.protocol import Capabilities
from engine.executor.sampling import choose_tokens

MAX_IN_FLIGHT = 2
"""One plan runs while the next one waits: overlap of depth 1."""


@dataclass(frozen=True, slots=True)
class _Job:
    batch: Batch
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[StepOutcome]


class TorchExecutor:
    """Implements `engine.executor.protocol.Executor` over a `ModelRunner`, which belongs to its thread from now on."""

    def __init__(self, runner: ModelRunner, threads: int) -> None:
        """`threads` is the number that torch computes with; starts the executor's own thread beside them."""
        config, pool = runner.config, runner.pool
        self._runner = runner
        self._sampled: dict[int, int] = {}
        """req_pool_idx → id that was last sampled there. Touched by the executor's thread only."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_closed = False
        self._capabilities = Capabilities(
            name=f"{config.name}, cpu torch float32",
            pool_kinds=(PoolKind.FULL,),
            page_size=pool.page_size,
            pool_pages=pool.pool_pages,
            num_rows=pool.num_rows,
            context_len=config.context_len,
            vocab_size=config.vocab_size,
            max_in_flight=MAX_IN_FLIGHT,
        )
        self._thread = threading.Thread(target=self._work, args=(threads,), name="tenure-executor", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def model_config(self) -> ModelConfig:
        return self._runner.config

    def submit(self, plan: StepPlan) -> asyncio.Future[StepOutcome]:
        """Builds the plan's arrays here, on the loop, and queues them. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError(f"step {plan.step} submitted to a closed executor")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StepOutcome] = loop.create_future()
        self._jobs.put(_Job(build_batch(plan, self._runner.pool), loop, answer))
        return answer

    def close(self) -> None:
        """Answers what was submitted, then stops. Idempotent; blocks until the thread has ended."""
        if not self._is_closed:
            self._is_closed = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)
        while (job := self._jobs.get()) is not None:
            _answer(job, self._run(job))

    def _run(self, job: _Job) -> StepOutcome:
        try:
            return self._step(job)
        except ForwardError as error:
            return StepFailure(job.batch.step, str(error))
        except Exception as error:
            # Broad on purpose: whatever a forward raises ends the requests of its step, not the thread (law L7).
            return StepFailure(job.batch.step, f"{type(error).__name__}: {error}")

    def _step(self, job: _Job) -> StepResult:
        batch = job.batch
        for token, row in zip(batch.pending_idx, batch.pending_rows, strict=True):
            sampled_id = self._sampled.get(int(row))
            if sampled_id is None:
                raise ForwardError(f"row {row}: its input was never sampled")
            batch.token_ids[token] = sampled_id
        chosen = choose_tokens(self._runner.forward(batch, batch.sample_idx), batch.draws).tolist()
        # A row's samples come in order of position, so its last one stays.
        self._sampled.update(zip(batch.sample_rows.tolist(), chosen, strict=True))
        edges = itertools.pairwise(batch.sample_indptr.tolist())
        return StepResult(batch.step, tuple(tuple(chosen[start:stop]) for start, stop in edges))


def _answer(job: _Job, outcome: StepOutcome) -> None:
    """Resolves the job's future on its loop; an answer that nobody can receive any more is dropped."""

    def resolve() -> None:
        if not job.answer.done():
            job.answer.set_result(outcome)

    try:
        job.loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        # The loop was closed while the forward ran, and the future went with it.
        assert job.loop.is_closed(), f"step {job.batch.step}: a running loop refused its answer"
