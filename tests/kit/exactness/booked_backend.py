"""The real executor beside books of its own, so that what each owner holds is counted at every step."""

from collections.abc import Sequence

from engine.core.config import CoreConfig
from engine.core.events import CoreEvent
from engine.core.ids import Rid
from engine.core.ownership import Owner, OwnerKind, PoolKind
from engine.executor.protocol import Executor
from tests.kit.book import Book
from tests.kit.exactness.devices import ExecutorBackend


class BookedBackend(ExecutorBackend):
    """Keeps in mind how many SWA pages each owner had at most, as looked at after every plan and every answer."""

    def __init__(self, executor: Executor, config: CoreConfig) -> None:
        super().__init__(executor)
        self.book = Book.of(config)
        self.most: dict[Owner, int] = {}
        self.most_in_use = 0
        """Of all SWA pages at once: those that requests and sessions have, and those that they have locked in the
        cache. While one turn is alone these are its."""

    def observe(self, events: Sequence[CoreEvent]) -> None:
        self.book.replay(events)
        terms = self.book.terms(PoolKind.SWA)
        self.most_in_use = max(self.most_in_use, terms.uncached + terms.session_held + terms.protected)
        owners = self.book.owners(PoolKind.SWA)[1:]
        for owner in set(owners):
            self.most[owner] = max(self.most.get(owner, 0), owners.count(owner))

    def most_of_request(self, rid: Rid) -> int:
        return self.most[Owner(OwnerKind.REQUEST, rid)]
