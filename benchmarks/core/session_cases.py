"""Turns of long sessions: lend and match, and what the core does for a turn as it comes in."""

from collections.abc import Iterator

from benchmarks.core.parts import VOCAB, Minter, answer, make_ids, make_parts, make_request
from benchmarks.core.results import Result
from benchmarks.core.timing import measure, now_ns, quiet, summarize
from engine.core.commands import Abort, CommitAck, Open, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.drafts import find_drafts
from engine.core.ids import TOKEN_BYTES, SessionId, StepNo, TurnId, pack_ids, pages_for
from engine.core.plan import StepResult
from engine.core.request import Phase, Request

PAGE_SIZE = 16
NAME = SessionId("s")

LEND_PEER_US = {1 << 10: 107.0, 1 << 13: 125.0, 1 << 15: 150.0}
LEND_TARGET_US = 20.0
COMPILE_PEER_US = 500.0
COMPILE_TARGET_US = 50.0
"""Plus the new tokens, of which the cases have few."""
NEW_TOKENS = 16
FIRST_TURN_TOKENS = 512
"""The first turn's prompt is the tree's; what comes after it is the slot's own."""
DRAFT_TOKENS = 8
DRAFT_CASES = ("found near the end", "nothing to find", "hits between ids only")


class LentSlot:
    """A streaming session whose slot holds the KV of its whole history but the last token, and its next turn.

    Own pages: all but the first page, as after many turns. Else all but the last page are the tree's, as after a first
    turn with a long prompt.
    """

    def __init__(self, context_len: int, has_own_pages: bool) -> None:
        num_pages = pages_for(context_len, PAGE_SIZE)
        self.parts = make_parts(PAGE_SIZE, num_pages, pages_per_row=num_pages)
        self.session = self.parts.sessions.open(Open(NAME, streaming=True), 0.0)
        self.parts.slots.open_session(self.session)
        ids = make_ids(context_len)
        first = make_request(1, ids, self.session)
        self._run_first(first, num_pages, PAGE_SIZE if has_own_pages else context_len)
        self.session.history = ids
        self.give_back(first)
        self._next = ids + pack_ids(range(NEW_TOKENS))
        self._context_len = context_len
        self.turn = self.make_turn(2)

    def _run_first(self, first: Request, num_pages: int, prompt_len: int) -> None:
        parts = self.parts
        parts.slots.acquire(first, parts.slots.probe(first))
        kv = first.kv
        granted = parts.pools.grant(first.owner, num_pages, 1)
        assert granted is not None, "the pool is empty"
        kv.pages, kv.req_pool_idx = granted.pages, granted.rows[0]
        parts.table.write(granted.rows[0], 0, granted.pages)
        kv.kv_committed_len = kv.kv_allocated_len = first.known_len - 1
        first.prompt_len = prompt_len
        parts.slots.cache_prompt(first)
        first.base_len = first.known_len

    def make_turn(self, rid: int) -> Request:
        return make_request(rid, self._next, self.session, self._context_len)

    def lend(self) -> None:
        self.parts.slots.acquire(self.turn, self.parts.slots.probe(self.turn))

    def give_back(self, turn: Request) -> None:
        """The turn is rolled back: the slot holds what it held."""
        turn.phase = Phase.ROLLING_BACK
        self.parts.slots.follow(turn)
        self.parts.slots.roll_back(turn)
        self.parts.log.take()

    def renew(self) -> None:
        self.give_back(self.turn)
        self.turn = self.make_turn(self.turn.rid + 1)


def lend(context_len: int, has_own_pages: bool, repetitions: int) -> Result:
    """Probes and acquires a held slot."""
    slot = LentSlot(context_len, has_own_pages)
    timing = measure(slot.lend, repetitions, after=slot.renew)
    variant = "pages of its own" if has_own_pages else "pages of the tree"
    peer_us = LEND_PEER_US.get(context_len)
    return Result("lend a held slot and match", variant, context_len, "tokens", timing, LEND_TARGET_US, peer_us)


class GrownSession:
    """A session behind the facade, grown to `context_len` tokens by turns."""

    def __init__(self, context_len: int, streaming: bool) -> None:
        room = context_len + 1024
        self.core = Core(
            CoreConfig(
                page_size=PAGE_SIZE,
                pool_pages=2 * pages_for(room, PAGE_SIZE),
                num_rows=8,
                context_len=room,
                vocab_size=VOCAB,
                chunk_tokens=room,
                step_tokens=room,
                running_max=4,
            )
        )
        self._streaming = streaming
        self._minter = Minter()
        self._last: TurnId | None = None
        self.core.apply(Open(NAME, streaming=streaming), 0.0)
        for _ in range(context_len // FIRST_TURN_TOKENS):
            self._grow(FIRST_TURN_TOKENS - 1)

    def submission(self, num_tokens: int) -> Submit:
        rid, turn_id = self._minter.next()
        parent = None if self._streaming else self._last
        ids = make_ids(num_tokens, seed=rid)
        return Submit(rid, turn_id, ids, session_id=NAME, parent=parent, max_tokens=1, ignore_eos=True)

    def _grow(self, num_tokens: int) -> None:
        """One turn of so many new ids and one sampled."""
        command = self.submission(num_tokens)
        self.core.apply(command, 0.0)
        plan = self.core.next_plan(0.0)
        assert plan is not None, "the turn was not planned"
        self.core.advance(answer(plan), 0.0)
        self.core.apply(CommitAck(command.rid), 0.0)
        self._last = command.turn_id
        self.core.take_events()

    def drop(self, command: Submit, step: StepNo | None, result: StepResult | None) -> None:
        """Aborts the turn again: the session is what it was."""
        self.core.apply(Abort(command.rid), 0.0)
        if step is not None and result is not None:
            self.core.advance(result, 0.0)
        self.core.take_events()


def turn(context_len: int, streaming: bool, repetitions: int) -> Iterator[Result]:
    """Submits a turn (gate, compile, queue), then plans it (probe, lease, room, row): all a turn's first step costs."""
    grown = GrownSession(context_len, streaming)
    submit_ns: list[int] = []
    plan_ns: list[int] = []
    with quiet():
        for repetition in range(-5, repetitions):
            command = grown.submission(NEW_TOKENS)
            start = now_ns()
            grown.core.apply(command, 0.0)
            submitted = now_ns()
            plan = grown.core.next_plan(0.0)
            planned = now_ns()
            assert plan is not None, "the turn was not planned"
            grown.drop(command, plan.step, answer(plan))
            if repetition >= 0:
                submit_ns.append(submitted - start)
                plan_ns.append(planned - submitted)
    kind = "streaming session" if streaming else "ordinary session"
    yield Result(
        "compile and queue a session turn",
        kind,
        context_len,
        "tokens",
        summarize(submit_ns),
        COMPILE_TARGET_US,
        COMPILE_PEER_US,
    )
    yield Result("admit and plan a session turn", kind, context_len, "tokens", summarize(plan_ns))


def known_ids(known: int, variant: str) -> bytes:
    """Ids of a turn for prompt lookup, by what it meets there."""
    match variant:
        case "found near the end":
            ids = make_ids(known - 2 * DRAFT_TOKENS)
            return ids + ids[-DRAFT_TOKENS * TOKEN_BYTES :] * 2
        case "nothing to find":
            return make_ids(known - 1) + pack_ids([VOCAB])
        case "hits between ids only":  # four zero bytes at every second id, never on its edge
            return pack_ids([1, 1 << 16] * (known // 2 - 1) + [5, 0])
        case _:
            raise ValueError(f"no such ids: {variant}")


def look_up_drafts(known: int, variant: str, repetitions: int) -> Result:
    """Prompt lookup over all ids of a turn, as each step of one that speculates does it."""
    ids = known_ids(known, variant)
    assert bool(find_drafts(ids, DRAFT_TOKENS)) == (variant == "found near the end"), "the ids are not what they say"
    timing = measure(lambda: find_drafts(ids, DRAFT_TOKENS), repetitions)
    return Result("look up drafts", variant, known, "ids", timing)


def session_results(is_quick: bool) -> Iterator[Result]:
    repetitions = 10 if is_quick else 500
    sizes = (1 << 10,) if is_quick else (1 << 10, 1 << 13, 1 << 15)
    for has_own_pages in (True, False):
        for context_len in sizes:
            yield lend(context_len, has_own_pages, repetitions)
    for variant in DRAFT_CASES:
        for known in sizes:
            yield look_up_drafts(known, variant, repetitions // 5)
    turns = [turn(size, streaming, repetitions) for streaming in (True, False) for size in sizes]
    found = (result for results in turns for result in results)
    yield from sorted(found, key=lambda result: result.operation, reverse=True)
