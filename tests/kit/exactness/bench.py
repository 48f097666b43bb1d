"""Runs one cell of the matrix on one backend, and fails when the run did not do what the cell is there for."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate

from engine.core.config import CoreConfig
from tests.kit.exactness.cells import Cell, Kind
from tests.kit.exactness.conversation import ColdRun, Conversation, RetractAfter, Texts
from tests.kit.exactness.devices import Device
from tests.kit.exactness.driver import Driver
from tests.kit.exactness.memory import PLAIN, Memory, prompt_chunks, reuse_interval
from tests.kit.exactness.scenarios import SCENARIOS
from tests.kit.exactness.tally import Tally

POOL_TOKENS = 384
"""Holds all turns that run at once, on pages of any size: no turn is retracted but on purpose."""
NUM_ROWS = 9
WHOLE = 4096
DRAFT_TOKENS = 4

MakeDevice = Callable[[CoreConfig], AbstractContextManager[Device]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A model behind a backend, what is said to it, and what it says when it runs cold."""

    make_device: MakeDevice
    cold_run: ColdRun
    texts: Texts
    vocab_size: int
    context_len: int
    memory: Memory = PLAIN

    def run(self, cell: Cell, retract_after: RetractAfter, intruded_round: int | None = None) -> Tally:
        """Raises AssertionError for the first id that is not that of a cold run, and for a claim that does not hold."""
        config = self._config(cell)
        with self.make_device(config) as device:
            driver = Driver(config, device)
            drafts = DRAFT_TOKENS if cell.speculation else 0
            talk = Conversation(
                driver, self.cold_run, self.texts, retract_after, draft_tokens=drafts, intruded_round=intruded_round
            )
            SCENARIOS[cell.kind](talk)
            talk.end()
        _assert_exercised(cell, driver.tally, prompt_chunks(len(self.texts.said[0]), config))
        if not driver.tally.retracted:
            _assert_found(cell, driver.tally, self.texts, reuse_interval(config))
        return driver.tally

    def _config(self, cell: Cell) -> CoreConfig:
        plain = CoreConfig(
            page_size=cell.page_size,
            pool_pages=POOL_TOKENS // cell.page_size + 1,
            num_rows=NUM_ROWS,
            context_len=self.context_len,
            vocab_size=self.vocab_size,
            chunk_tokens=cell.chunk_tokens or WHOLE,
            in_flight_max=2 if cell.overlap else 1,
        )
        return self.memory.fit(plain)


def never(_turn: int) -> None:
    """No turn is retracted."""


def _assert_exercised(cell: Cell, tally: Tally, first_chunks: tuple[int, ...]) -> None:
    """`first_chunks`: into which the first prompt, the longest of which nothing is cached, has to be cut."""
    assert tally.rows_max >= 2, f"no step had two rows: {tally}"
    assert tally.retractions == len(tally.retracted), f"turns were retracted that should not have been: {tally}"
    assert tally.plans_in_flight_max == (2 if cell.overlap else 1), f"overlap: {tally}"
    assert (tally.sampled_inputs > 0) == cell.overlap, f"inputs in flight: {tally}"
    if not tally.retracted:
        assert tally.chunk_max == max(first_chunks), f"chunks have another size: {tally}"
        assert tally.chunks_max == len(first_chunks), f"the first prompt has another number of chunks: {tally}"
    _assert_reused(cell, tally)
    _assert_speculated(cell, tally)


def _assert_reused(cell: Cell, tally: Tally) -> None:
    has_slots = cell.kind not in (Kind.STATELESS, Kind.ORDINARY)
    assert (tally.tokens_from_slot > 0) == has_slots, f"tokens from slots: {tally}"
    assert tally.tokens_from_tree > 0 or cell.kind is Kind.STREAMING, f"tokens from the tree: {tally}"
    assert (tally.forked_kv > 0) == (cell.kind is Kind.FORKED), f"{tally.forked_kv} tokens of KV came with forks"
    assert (tally.cut_kv > 0) == (cell.kind is Kind.TRUNCATED), f"{tally.cut_kv} tokens of KV were left by cuts"


def _assert_found(cell: Cell, tally: Tally, texts: Texts, interval: int) -> None:
    """What one turn leaves the next one finds: all of it in a slot, the last whole `interval` of it in the tree.

    Of forks and cuts, of the answer that is generated anew and of bystanders nothing is claimed here.
    """
    lens = list(accumulate(len(new) + texts.max_tokens for new in texts.said[:2]))
    left = [length - 1 for length in lens]  # the KV of the last id is never computed
    if cell.kind is Kind.STREAMING:
        assert tally.tokens_from_slot == sum(left), f"tokens from slots: {tally}"
    elif cell.kind in (Kind.STATELESS, Kind.ORDINARY):
        least = sum(length // interval * interval for length in left)
        if cell.kind is Kind.ORDINARY:  # the branch goes on from the first answer, then from as much as the second one
            branch = lens[0] + len(texts.said[3]) + texts.max_tokens - 1
            least += sum(length // interval * interval for length in (left[0], branch))
        assert tally.tokens_from_tree >= least, f"less than {least} tokens from the tree: {tally}"


def _assert_speculated(cell: Cell, tally: Tally) -> None:
    assert (tally.drafted > 0) == cell.speculation, f"guesses: {tally}"
    assert not cell.speculation or tally.accepted > 0, f"no guess was right: {tally}"
    assert not cell.speculation or tally.given_back_steps > 0, f"no guess was wrong: {tally}"
