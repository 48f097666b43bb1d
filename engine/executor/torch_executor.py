"""The executor on a CPU: plans go to one thread through a queue, answers come back to the event loop in order."""

import asyncio
import itertools
import logging
import queue
import threading
import time
from dataclasses import dataclass

import torch

from engine.core.plan import StepFailure, StepOutcome, StepPlan, StepResult
from engine.executor.batch import Batch, build_batch
from engine.executor.device_faults import DeviceFaults, ForwardDrill, ForwardFault
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ForwardError, ModelRunner
from engine.executor.preparation import run_first_forwards
from engine.executor.promise import Promise
from engine.executor.protocol import Capabilities, ExecutorLost
from engine.executor.sampling import choose_tokens
from engine.executor.tampering import tamper_of

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 2
"""One plan runs while the next one waits: overlap of depth 1."""

_VOID_ID = 0
"""What a row goes on from whose forward failed, when the next step was planned by then. Its turn has ended, so nobody
looks at what comes of it; the other turns of that step must not fail with it."""


@dataclass(frozen=True, slots=True)
class _Forward:
    batch: Batch
    answer: Promise[StepOutcome]


@dataclass(frozen=True, slots=True)
class _Preparation:
    answer: Promise[None]


_Job = _Forward | _Preparation


class TorchExecutor:
    """Implements `engine.executor.protocol.Executor` over a `ModelRunner`, which belongs to its thread from now on."""

    def __init__(self, runner: ModelRunner, threads: int, faults: DeviceFaults | None = None) -> None:
        """`threads` is the number that torch computes with; starts the executor's own thread beside them. With `faults`
        forwards go wrong as is armed there.
        """
        config, pool = runner.config, runner.pool
        self._runner = runner
        self._faults = faults
        self._sampled: dict[int, int] = {}
        """req_pool_idx → id that was last sampled there. Touched by the executor's thread only."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held to queue something, and to change one of the two below."""
        self._is_closed = False
        self._lost: ExecutorLost | None = None
        self._capabilities = Capabilities(
            name=f"{config.name}, cpu torch float32",
            pool_kinds=config.pool_kinds,
            page_size=pool.page_size,
            pool_pages=pool.pool_pages,
            num_rows=pool.num_rows,
            context_len=config.context_len,
            vocab_size=config.vocab_size,
            max_in_flight=MAX_IN_FLIGHT,
            window=config.window,
            swa_pages=pool.swa_pages,
            state_slots=pool.state_slots,
        )
        self._thread = threading.Thread(target=self._work, args=(threads,), name="tenure-executor", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def model_config(self) -> ModelConfig:
        return self._runner.config

    def prepare(self) -> asyncio.Future[None]:
        """Runs a prompt and a decode over pools of their own: torch's threads and kernels are there then."""
        promise = Promise[None].make()
        self._queue(_Preparation(promise), "a preparation")
        return promise.future

    def submit(self, plan: StepPlan) -> asyncio.Future[StepOutcome]:
        """Builds the plan's arrays here, on the loop, and queues them. Raises RuntimeError once closed."""
        promise = Promise[StepOutcome].make()
        self._queue(_Forward(build_batch(plan, self._runner.pool), promise), f"step {plan.step}")
        return promise.future

    def _queue(self, job: _Job, what: str) -> None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{what} submitted to a closed executor")
            lost = self._lost
            if lost is None:
                self._jobs.put(job)
        if lost is not None:
            job.answer.fail_now(lost)

    def close(self) -> None:
        """Answers what was submitted, then stops. Idempotent; blocks until the thread has ended."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()

    def _work(self, threads: int) -> None:
        job: _Job | None = None
        try:
            torch.set_num_threads(threads)
            while (job := self._jobs.get()) is not None:
                self._do(job)
        except BaseException as error:
            # Nothing of this may leave anyone waiting: there is no other thread that could answer.
            self._give_up(job, error)

    def _do(self, job: _Job) -> None:
        match job:
            case _Forward():
                job.answer.keep(self._run(job.batch))
            case _Preparation():
                run_first_forwards(self._runner)  # what it raises ends the thread: there is nothing to serve with
                job.answer.keep(None)

    def _run(self, batch: Batch) -> StepOutcome:
        try:
            drill = None if self._faults is None else self._faults.take(len(batch.sample_idx))
            return self._step(batch, drill)
        except ForwardError as error:
            reason = str(error)
        except Exception as error:
            # Broad on purpose: whatever a forward raises ends the requests of its step, not the thread (law L7).
            reason = f"{type(error).__name__}: {error}"
        for row in batch.sample_rows.tolist():
            self._sampled[row] = _VOID_ID
        return StepFailure(batch.step, reason)

    def _step(self, batch: Batch, drill: ForwardDrill | None) -> StepResult:
        began_s = time.perf_counter()
        for token, row in zip(batch.pending_idx, batch.pending_rows, strict=True):
            sampled_id = self._sampled.get(int(row))
            if sampled_id is None:
                raise ForwardError(f"row {row}: its input was never sampled")
            batch.token_ids[token] = sampled_id
        logits = self._runner.forward(batch, batch.sample_idx, None if drill is None else tamper_of(drill))
        chosen = choose_tokens(logits, batch.draws).tolist()
        if drill is not None and drill.fault is ForwardFault.BAD_TOKEN:
            chosen = [self._capabilities.vocab_size] * len(chosen)
        # A row's samples come in order of position, so its last one stays.
        for row, token_id in zip(batch.sample_rows.tolist(), chosen, strict=True):
            self._sampled[row] = token_id if token_id < self._capabilities.vocab_size else _VOID_ID
        edges = itertools.pairwise(batch.sample_indptr.tolist())
        device_s = time.perf_counter() - began_s
        return StepResult(batch.step, tuple(tuple(chosen[start:stop]) for start, stop in edges), device_s)

    def _give_up(self, in_hand: _Job | None, cause: BaseException) -> None:
        """The thread ends: what it has in hand, what waits and what comes later carries the cause."""
        lost = ExecutorLost(f"the executor's thread has ended: {type(cause).__name__}: {cause}")
        _log.critical("event=executor_lost reason=%s: %s", type(cause).__name__, cause, exc_info=cause)
        with self._lock:
            self._lost = lost
        if in_hand is not None:
            in_hand.answer.fail(lost)
        while not self._jobs.empty():  # nobody queues any more
            waiting = self._jobs.get()
            if waiting is not None:
                waiting.answer.fail(lost)
