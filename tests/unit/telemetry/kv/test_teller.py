"""What is told of the cache when there is no room and when listeners are late: it always leads to the cache."""

from random import Random

import pytest

from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CoreEvent, KvMoved, Numbered, PrefixStored
from engine.core.ids import StepNo, pack_ids
from engine.core.ownership import CACHE, FREE, Move, PoolKind
from telemetry.kv.announcer import Announcer, groups_of
from telemetry.kv.backlog import Backlog
from telemetry.kv.prefix_index import Change, Left, PrefixIndex, Stored, Whole
from telemetry.kv.teller import Teller
from telemetry.kv.wire_format import encode_batch
from telemetry.settings import Encoding
from tests.kit.kv_subscriber import Belief, read_events, tree_paths
from tests.sim.families import Family
from tests.sim.runner import run_seed
from tests.unit.telemetry.history_desk import UNIX_S, HandClock
from tests.unit.telemetry.test_history_replay import pool_sizes

FULL = PoolKind.FULL
OTHERS = (PoolKind.SWA, PoolKind.MAMBA)


class TellerDesk:
    """A teller, and the other side of its backlog by hand."""

    def __init__(self, changes_max: int, page_size: int = 1) -> None:
        self.backlog = Backlog(changes_max)
        self.wakes = 0
        index = PrefixIndex(page_size, OTHERS, has_salted=True)
        self.teller = Teller(index, self.backlog, HandClock(UNIX_S), self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def hear(self, *events: CoreEvent) -> None:
        self.teller.hear(tuple(Numbered(1, event) for event in events))

    def take(self) -> tuple[Change, ...]:
        """As the thread does after each publish."""
        told = self.backlog.take()
        if self.backlog.take_news_of_room():
            self.teller.answer(is_for_late=False)
        return () if told is None else told.changes

    def take_all(self) -> list[Change]:
        changes: list[Change] = []
        while self.backlog.num_waiting:
            changes += self.take()
        return changes


def stored(page: int) -> PrefixStored:
    return PrefixStored(FULL, (page,), pack_ids([page]))


def evicted(page: int) -> KvMoved:
    return KvMoved(FULL, Move.EVICT, CACHE, FREE, (page,), StepNo(1), "")


def pages_told(changes: list[Change]) -> set[int]:
    """What a listener has that heard all of them."""
    pages: set[int] = set()
    for change in changes:
        match change:
            case Stored():
                pages |= set(change.units)
            case Left():
                pages -= set(change.units)
            case Whole():
                pages = set(change.pages)
            case _:
                pages.clear()
    return pages


def test_late_listener_when_there_is_room_then_the_whole_at_once() -> None:
    desk = TellerDesk(8)
    desk.hear(stored(1))
    desk.take_all()
    desk.teller.answer(is_for_late=True)
    (whole,) = desk.take_all()
    assert isinstance(whole, Whole)
    assert (desk.teller.clears, desk.teller.dropped) == (1, 0)


def test_late_listener_when_the_backlog_is_more_than_half_full_then_changes_go_on_and_the_whole_comes_behind() -> None:
    desk = TellerDesk(8)
    for page in range(1, 6):
        desk.hear(stored(page))
    before = desk.wakes
    desk.teller.answer(is_for_late=True)
    assert desk.wakes == before + 1, "the thread has to look for room, if nothing happens any more"
    desk.hear(evicted(5))
    desk.hear(stored(6))
    changes = desk.take_all()
    assert desk.teller.dropped == 0, "there was room for all"
    assert [type(change) for change in changes] == [*[Stored] * 5, Left, Stored, Whole]
    assert pages_told(changes) == {1, 2, 3, 4, 6}
    assert desk.teller.clears == 1


def test_changes_when_they_overflow_while_a_whole_is_owed_to_the_late_then_one_whole_for_both() -> None:
    desk = TellerDesk(4)
    for page in range(1, 4):
        desk.hear(stored(page))
    desk.teller.answer(is_for_late=True)
    for page in range(4, 8):
        desk.hear(stored(page))
    assert desk.teller.dropped == 3
    changes = desk.take_all()
    assert [type(change) for change in changes] == [*[Stored] * 4, Whole]
    assert pages_told(changes) == set(range(1, 8))


def test_changes_when_they_overflow_and_then_nothing_happens_then_the_whole_comes_all_the_same() -> None:
    desk = TellerDesk(4)
    for page in range(1, 8):
        desk.hear(stored(page))
    assert pages_told(desk.take_all()) == set(range(1, 8))
    assert (desk.teller.dropped, desk.teller.clears) == (3, 1)


def test_changes_when_room_is_gone_again_before_the_answer_then_asked_for_anew() -> None:
    desk = TellerDesk(4)
    for page in range(1, 6):
        desk.hear(stored(page))
    for _ in range(2):
        desk.backlog.take()
    assert desk.backlog.take_news_of_room()
    desk.hear(stored(6))  # takes the room, with the whole
    for page in range(7, 12):
        desk.hear(stored(page))
    desk.teller.answer(is_for_late=False)  # late by all this
    assert pages_told(desk.take_all()) == set(range(1, 12))


def test_changes_when_nobody_is_there_to_tell_them_then_counted() -> None:
    desk = TellerDesk(4)
    desk.teller.drop((Numbered(1, stored(1)), Numbered(2, evicted(1)), Numbered(3, evicted(9))))
    assert desk.teller.dropped == 2
    assert desk.backlog.num_waiting == 0


class ToldCore(Core):
    """Tells a teller with hardly any room all that it tells its world; a listener hears it late, and asks at random."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.desk = TellerDesk(6, config.page_size)
        self.groups = groups_of(pool_sizes(config), config.window)
        self.belief = Belief()
        self.told: list[Numbered] = []
        self._announcer = Announcer(config.page_size, self.groups)
        self._draw = Random(config.pool_pages)

    def take_events(self) -> tuple[Numbered, ...]:
        events = super().take_events()
        self.told += events
        self.desk.teller.hear(events)
        draw = self._draw.random()
        for _ in range(self._draw.randrange(4) if draw < 0.25 else 100 if draw < 0.3 else 0):
            self.listen()
        if self._draw.random() < 0.1:
            self.desk.teller.answer(is_for_late=True)
        return events

    def listen(self) -> None:
        for change in self.desk.take():
            for event in read_events(encode_batch(1.0, list(self._announcer.events(change)), Encoding.MAP)):
                self.belief.apply(event)


@pytest.mark.parametrize("family", [None, Family.KINDS], ids=["any", "kinds"])
@pytest.mark.parametrize("seed", [5089, 5106, 5111, 5320, *range(40, 44)])
def test_listener_when_a_world_overflows_and_others_are_late_then_it_has_the_cache_once_nothing_happens(
    seed: int, family: Family | None
) -> None:
    cores: list[ToldCore] = []

    def make(config: CoreConfig) -> Core:
        cores.append(ToldCore(config))
        return cores[-1]

    assert run_seed(seed, make, family).failure is None
    core = cores[0]
    while core.desk.backlog.num_waiting:
        core.listen()
    for pool, group in core.groups.items():
        assert core.belief.of_group(group.group_idx) == tree_paths(core.told, pool), pool
    assert core.desk.teller.clears > 0, "nothing was tried"
