"""Host time of a step of pure decode through the facade, without an executor, split by phase."""

from collections.abc import Iterator

from benchmarks.core.parts import VOCAB, Minter, answer, make_ids
from benchmarks.core.results import Result
from benchmarks.core.timing import now_ns, quiet, summarize
from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.ids import pages_for
from engine.core.invariants import CheckLevel
from engine.core.plan import StepPlan

PAGE_SIZE = 16
CONTEXT_LEN = 512
"""Of the shortest prompt: one token more a turn, so that pages are filled at different steps."""
OUTPUT_LEN = 1024
STEP_TARGET_US = {16: 100.0, 64: 300.0, 256: 1000.0}
STEP_PEER_US = {16: 2600.0}
CHECK_TARGET_US = 5.0
PHASES = ("next_plan", "advance", "check", "take_events")


def make_batch(batch: int, in_flight_max: int) -> tuple[Core, list[StepPlan]]:
    """A core that runs `batch` turns, prompts of 512 tokens computed, and the plans that are in flight."""
    room = CONTEXT_LEN + PAGE_SIZE + OUTPUT_LEN
    core = Core(
        CoreConfig(
            page_size=PAGE_SIZE,
            pool_pages=batch * pages_for(room, PAGE_SIZE) + 1,
            num_rows=batch + 1,
            context_len=room,
            vocab_size=VOCAB,
            chunk_tokens=room,
            step_tokens=room * batch,
            running_max=batch,
            in_flight_max=in_flight_max,
        )
    )
    minter = Minter()
    for _ in range(batch):
        rid, turn_id = minter.next()
        ids = make_ids(CONTEXT_LEN + rid % PAGE_SIZE, seed=rid)
        core.apply(Submit(rid, turn_id, ids, max_tokens=OUTPUT_LEN, ignore_eos=True), 0.0)
    plans: list[StepPlan] = []
    for _ in range(in_flight_max - 1):
        plan = core.next_plan(0.0)
        assert plan is not None, "nothing was planned"
        plans.append(plan)
    return core, plans


def step(core: Core, plans: list[StepPlan]) -> tuple[int, ...]:
    """One plan out, the oldest one's answer in, the busy check, the events. Returns the time of each phase in ns."""
    start = now_ns()
    plan = core.next_plan(0.0)
    planned = now_ns()
    assert plan is not None, "nothing was planned"
    plans.append(plan)
    result = answer(plans.pop(0))
    answered = now_ns()
    core.advance(result, 0.0)
    advanced = now_ns()
    report = core.check(CheckLevel.BUSY)
    checked = now_ns()
    core.take_events()
    taken = now_ns()
    assert report.is_clean, report.findings
    return planned - start, advanced - answered, checked - advanced, taken - checked


def decode(batch: int, in_flight_max: int, repetitions: int) -> Iterator[Result]:
    """The whole step, then its phases."""
    core, plans = make_batch(batch, in_flight_max)
    with quiet():
        for _ in range(10):
            step(core, plans)
        times = [step(core, plans) for _ in range(repetitions)]
    kind = "overlapped" if in_flight_max > 1 else "one plan at a time"
    whole = summarize([sum(phases) for phases in times])
    yield Result("decode step", kind, batch, "rows", whole, STEP_TARGET_US.get(batch), STEP_PEER_US.get(batch))
    for place, phase in enumerate(PHASES):
        target_us = CHECK_TARGET_US if phase == "check" else None
        timing = summarize([phases[place] for phases in times])
        yield Result(f"decode step: {phase}", kind, batch, "rows", timing, target_us)


def step_results(is_quick: bool) -> Iterator[Result]:
    repetitions = 20 if is_quick else 500
    results = [
        result
        for in_flight_max in (1, 2)
        for batch in ((16,) if is_quick else (16, 64, 256))
        for result in decode(batch, in_flight_max, repetitions)
    ]
    yield from sorted(results, key=lambda result: result.operation)
