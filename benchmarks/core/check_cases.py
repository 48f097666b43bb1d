"""The full check of a large pool that many sessions hold."""

from collections.abc import Iterator

from benchmarks.core.parts import VOCAB, Minter, answer, make_ids
from benchmarks.core.results import Result
from benchmarks.core.timing import measure
from engine.core.commands import CommitAck, Open, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.ids import SessionId
from engine.core.invariants import CheckLevel

PAGE_SIZE = 16
SESSIONS = 1000
FULL_POOL_PAGES = 1 << 20
CHECK_TARGET_US = 1_500_000.0


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


def full_check(pool_pages: int, sessions: int, repetitions: int) -> Result:
    """Everything at once; the target is of CPU time."""
    core = make_used_pool(pool_pages, sessions)

    def run() -> None:
        report = core.check(CheckLevel.FULL)
        assert report.is_clean, report.findings

    timing = measure(run, repetitions)
    target_us = CHECK_TARGET_US if pool_pages == FULL_POOL_PAGES else None
    return Result(f"full check, {sessions:,} sessions", "", pool_pages, "pages", timing, target_us)


def check_results(is_quick: bool) -> Iterator[Result]:
    if is_quick:
        yield full_check(4096, 16, 2)
        return
    for pool_pages in (1 << 16, 1 << 18, FULL_POOL_PAGES):
        yield full_check(pool_pages, SESSIONS, 5)
