"""What the engine's loop hands to the publisher's thread: each change, or all of it where changes were lost."""

from collections.abc import Callable
from typing import Any

from engine.core.events import CacheFlushed, KvMoved, Numbered, PrefixStored
from engine.core.ownership import OwnerKind
from engine.runtime.clock import Clock
from telemetry.kv.backlog import Backlog, Told
from telemetry.kv.prefix_index import Change, Emptied, PrefixIndex


class Teller:
    """Keeps the index. For the thread that puts into the backlog.

    Changes are dropped only while a whole is owed that has them, and a whole that is owed is always waited for: the
    backlog says when it has room, and `answer` has to be called then, be it that nothing happens any more.
    """

    def __init__(self, index: PrefixIndex, backlog: Backlog, wall: Clock, wake: Callable[[], None]) -> None:
        """`wake`: something was put, or room is wanted."""
        self.dropped = 0
        """Changes that were not told one by one."""
        self.clears = 0
        """Times that the whole was told."""
        self._index = index
        self._backlog = backlog
        self._wall = wall
        self._wake = wake
        self._is_behind = False
        """A change was dropped, so all others are until the whole is told: what they build on was not."""
        self._owes_whole = False
        """To a late listener. Changes are told meanwhile."""
        self._handlers: dict[type, Callable[[Any], Change | None]] = {
            PrefixStored: index.store,
            KvMoved: self._moved,
            CacheFlushed: self._flushed,
        }

    def hear(self, events: tuple[Numbered, ...]) -> None:
        """Tells what they change. Nothing waits: what has no room is dropped, and counted."""
        changes = self._find_changes(events)
        if not changes:
            return
        if self._is_behind:
            if not self._tell_whole():  # these changes are in it
                self.dropped += len(changes)
        elif not self._put(changes):
            self._is_behind = True
            self.dropped += len(changes)

    def drop(self, events: tuple[Numbered, ...]) -> None:
        """Counts what they change: nobody tells it."""
        self.dropped += len(self._find_changes(events))

    def answer(self, *, is_for_late: bool) -> None:
        """There is room again, or a listener is late. Tells the whole if it is owed, now or when there is room."""
        self._owes_whole |= is_for_late
        if self._is_behind or self._owes_whole:
            self._tell_whole()

    def _tell_whole(self) -> bool:
        """False when there is no room: then the backlog says when there is."""
        if not self._backlog.want_room():
            self._wake()
            return False
        has_put = self._put((self._index.copy(),))
        assert has_put, "half of the backlog is free, and nobody else puts"
        self._is_behind = self._owes_whole = False
        self.clears += 1
        return True

    def _put(self, changes: tuple[Change, ...]) -> bool:
        """Whether there was room."""
        had_room = self._backlog.put(Told(self._wall.now(), changes))
        self._wake()  # if there was none, too: the thread says when there is
        return had_room

    def _find_changes(self, events: tuple[Numbered, ...]) -> tuple[Change, ...]:
        changes: list[Change] = []
        find = self._handlers.get
        for _, event in events:
            handle = find(type(event))
            if handle is not None and (change := handle(event)) is not None:
                changes.append(change)
        return tuple(changes)

    def _moved(self, event: KvMoved) -> Change | None:
        if event.source.kind is not OwnerKind.CACHE:
            return None
        return self._index.leave(event.pool, event.pages)

    def _flushed(self, _event: CacheFlushed) -> Change | None:
        return Emptied() if self._index.is_empty else None
