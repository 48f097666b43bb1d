"""The full check of a large pool that many sessions hold, whole and in slices, and a slice of the owners' check."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.core.parts import VOCAB, Minter, answer, make_ids
from benchmarks.core.results import Result
from benchmarks.core.timing import Timing, measure, now_ns, quiet, summarize
from engine.core.commands import CommitAck, Open, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.ids import SessionId
from engine.core.invariants import CheckLevel

PAGE_SIZE = 16
SESSIONS = 1000
LARGE_PAGES = 1 << 20
CHECK_TARGET_US = 1_500_000.0
SLICE_TARGET_US = 5_000.0
"""Targets of the largest pool."""


@dataclass(frozen=True, slots=True)
class Sizes:
    pool_pages: int
    sessions: int

    def result(self, operation: str, variant: str, timing: Timing, target_us: float | None) -> Result:
        name = f"{operation}, {self.sessions:,} sessions"
        has_target = self.pool_pages == LARGE_PAGES
        return Result(name, variant, self.pool_pages, "pages", timing, target_us if has_target else None)


def run_turn(core: Core, minter: Minter, num_tokens: int, session_id: SessionId | None) -> None:
    """One turn of `num_tokens` new ids and one sampled, committed."""
    rid, turn_id = minter.next()
    ids = make_ids(num_tokens, seed=rid)
    core.apply(Submit(rid, turn_id, ids, session_id=session_id, max_tokens=1, ignore_eos=True), 0.0)
    plan = core.next_plan(0.0)
    assert plan is not None, "the turn was not planned"
    core.advance(answer(plan), 0.0)
    core.apply(CommitAck(rid), 0.0)
    core.take_events()


def make_used_pool(pool_pages: int, sessions: int) -> Core:
    """A quarter of the pool in the sessions' first prompts, a quarter their own, a quarter cached, a quarter free."""
    turn_tokens = pool_pages * PAGE_SIZE // (4 * sessions)
    room = 2 * turn_tokens + PAGE_SIZE
    core = Core(
        CoreConfig(
            page_size=PAGE_SIZE,
            pool_pages=pool_pages + 1,
            num_rows=sessions + 2,
            context_len=room,
            vocab_size=VOCAB,
            chunk_tokens=room,
            step_tokens=room,
            running_max=1,
            sessions_max=sessions,
        )
    )
    minter = Minter()
    names = [SessionId(f"s{number}") for number in range(sessions)]
    for name in names:
        core.apply(Open(name, streaming=True), 0.0)
    for _ in range(2):
        for name in names:
            run_turn(core, minter, turn_tokens - 1, name)
    for _ in range(sessions):
        run_turn(core, minter, turn_tokens, None)
    return core


def full_check(core: Core, sizes: Sizes, repetitions: int) -> Result:
    """Everything at once; the target is of CPU time."""

    def run() -> None:
        report = core.check(CheckLevel.FULL)
        assert report.is_clean, report.findings

    timing = measure(run, repetitions)
    return sizes.result("full check", "whole", timing, CHECK_TARGET_US)


def sliced_check(core: Core, sizes: Sizes, repetitions: int) -> Iterator[Result]:
    """The same in slices as when idle: all slices together, then the longest one of each run."""
    totals_ns: list[int] = []
    longest_ns: list[int] = []
    with quiet():
        for _ in range(repetitions):
            slices_ns = time_slices(core)
            totals_ns.append(sum(slices_ns))
            longest_ns.append(max(slices_ns))
    yield sizes.result("full check", "all slices", summarize(totals_ns), CHECK_TARGET_US)
    yield sizes.result("full check", "longest slice", summarize(longest_ns), SLICE_TARGET_US)


def time_slices(core: Core) -> list[int]:
    slices_ns: list[int] = []
    report = None
    while report is None:
        start = now_ns()
        report = core.check_slice()
        slices_ns.append(now_ns() - start)
    assert report.is_clean, report.findings
    return slices_ns


def owners_check(core: Core, sizes: Sizes, repetitions: int) -> Result:
    """What a busy server with a large pool pays for in each step."""

    def run() -> None:
        report = core.check_owners_slice()
        assert report.is_clean, report.findings

    return sizes.result("owners check", "one slice", measure(run, repetitions), None)


def case(pool_pages: int, sessions: int, repetitions: int) -> Iterator[Result]:
    core, sizes = make_used_pool(pool_pages, sessions), Sizes(pool_pages, sessions)
    yield full_check(core, sizes, repetitions)
    yield from sliced_check(core, sizes, repetitions)
    yield owners_check(core, sizes, 200 * repetitions)


def check_results(is_quick: bool) -> Iterator[Result]:
    cases = (
        [(4096, 16, 2)] if is_quick else [(1 << 16, SESSIONS, 5), (1 << 18, SESSIONS, 5), (LARGE_PAGES, SESSIONS, 5)]
    )
    results = [result for of_case in cases for result in case(*of_case)]
    yield from sorted(results, key=lambda result: (result.operation, result.variant))
