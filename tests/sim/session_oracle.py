"""The oracle of sessions: what opens, closes, forks, is cut and is forgotten, and the slots with it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.core.commands import AbortReason, Fork, Lengths, Open, Submit, Truncate
from engine.core.config import CoreConfig
from engine.core.events import (
    KvMoved,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    TurnAdmitted,
    TurnsForgotten,
)
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.ownership import Move, Owner, OwnerKind
from tests.kit.book import Book
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel
from tests.sim.contents import Contents, Held
from tests.sim.records import SessionRecord, TurnRecord, expect
from tests.sim.refusals import forked_len
from tests.sim.slots import COMING_BACK, check_idle_slot, follow_slot
from tests.sim.turns import Compiled, changed_by_cut, cut, kept_names, path_to


@dataclass(slots=True)
class Asked:
    """What the call that runs may do to sessions."""

    command: Open | Fork | Truncate | Submit | None = None
    forgets: frozenset[TurnId] = frozenset()
    """Finished turns that must be told as forgotten, and have not been yet."""
    told: Lengths | None = None
    """What the events of Fork or Truncate said."""
    compiled: Compiled = field(default_factory=lambda: Compiled([]))
    kv_least: int = 0
    """What Fork must share."""
    cut_lens: tuple[int, int] | None = None
    """Of a hybrid's slot: how much of it the cut must leave, and can leave."""


class SessionOracle:
    """Keeps the record of each open session. Every method raises OracleFired when a law is broken."""

    def __init__(
        self,
        config: CoreConfig,
        turns: Mapping[Rid, TurnRecord],
        marks: Counter[str],
        model: ShadowModel,
        device: ShadowDevice,
        book: Book,
    ) -> None:
        self._config = config
        self.contents = Contents(config, model, device, book, self._namespace_of)
        self._turns = turns
        self._marks = marks
        self.sessions: dict[SessionId, SessionRecord] = {}
        self.asked = Asked()
        self.now = 0.0
        self._by_uid: dict[int, SessionRecord] = {}
        """Closed ones too, while their slot is still on its way back."""
        self._evicted = 0
        self._newly_held: dict[int, SessionRecord] = {}

    def _namespace_of(self, owner: Owner) -> str:
        if owner.kind is OwnerKind.SESSION:
            return self._by_uid[owner.name].namespace
        return self._turns[Rid(owner.name)].namespace

    def _held(self, session: SessionRecord) -> Held:
        return self.contents.held(Owner(OwnerKind.SESSION, session.uid), session.namespace, session.history)

    @property
    def _is_hybrid(self) -> bool:
        """Whether the model has windows or states: KV then can be used at some lengths only."""
        return self._config.window is not None or self._config.state_slots > 0

    def ask(self, command: Open | Fork | Truncate | Submit, compiled: Compiled | None = None) -> None:
        """The events of this call are for this command. A truncated session's record is cut here already."""
        self.asked = Asked(command)
        if isinstance(command, Fork):
            self.asked.kv_least = self._fork_least(command)
        if compiled is not None:
            self.asked.compiled, self.asked.forgets = compiled, compiled.forgotten

    def _fork_least(self, command: Fork) -> int:
        """What the other slot's full pages are good for up to the point; of states only a checkpoint is shared."""
        source, config = self.sessions.get(command.session_id), self._config
        if source is None or source.slot is not SlotState.HELD or not config.prefix_cache:
            return 0
        if command.at_turn is not None and command.at_turn not in source.nodes:
            return 0
        limit = forked_len(command, source) if command.at_len is None else command.at_len
        limit, held = min(source.slot_len, limit - 1), self._held(source)
        if config.state_slots:
            lens = [length for length in held.own_states(limit) if length < source.slot_len]
            return max((length for length in lens if held.covers(length)), default=0)
        length = source.slot_len // config.page_size * config.page_size
        if config.window is None:
            return max(0, limit) // config.page_size * config.page_size
        return length if 0 < length <= limit and held.covers(length) else 0

    def prepare_cut(self, command: Truncate, own_pages: int) -> None:
        """Cuts the record. `own_pages`: how many pages the slot itself owns; those before are the tree's."""
        session = self.sessions[command.session_id]
        length = command.length
        self.ask(command)
        self.asked.forgets = changed_by_cut(session, length)
        self._mark_cut(session, length, own_pages)
        if not session.streaming:
            session.nodes = cut(session.nodes, length)
            return
        session.nodes = kept_names(session.nodes, length)
        if length >= len(session.history):
            return
        if self._is_hybrid and session.slot is SlotState.HELD:
            held, limit = self._held(session), max(0, min(session.slot_len, length - 1))
            reach = session.slot_len if session.kv_least is None else None
            self.asked.cut_lens = held.least(limit, reach), held.most(limit)
        session.history = session.history[:length]
        page_size = self._config.page_size
        keep = max(0, min(session.slot_len, length - 1))
        if self._is_hybrid:
            session.kv_least = 0  # as long as windows and states allow: it is told what that is
            if session.slot in COMING_BACK:
                session.slot_len = keep
        elif session.slot is SlotState.HELD:
            tree_len = max(0, -(-session.slot_len // page_size) - own_pages) * page_size
            session.kv_least = keep if keep >= tree_len else keep // page_size * page_size
        elif session.slot in COMING_BACK:
            floor = max(0, length - 1) // page_size * page_size
            session.kv_least = min(floor, session.kv_least) if session.kv_least is not None else floor
            session.slot_len = keep // page_size * page_size

    def _mark_cut(self, session: SessionRecord, length: int, own_pages: int) -> None:
        if length == 0:
            self._marks["truncate to 0"] += 1
        if length >= session.history_len:
            self._marks["truncate nothing"] += 1
        elif not session.streaming:
            self._marks["truncate ordinary"] += 1
        else:
            self._marks[f"truncate {session.slot}"] += 1
            tree_pages = -(-session.slot_len // self._config.page_size) - own_pages
            is_inside = session.slot is SlotState.HELD and length - 1 < tree_pages * self._config.page_size
            self._marks["truncate inside the cache"] += is_inside

    def refused(self) -> None:
        """The command changed nothing."""
        self.asked = Asked()

    # Events

    def opened(self, event: SessionOpened) -> None:
        command = self.asked.command
        expect(event.session_id not in self.sessions, "ending", f"{event}, but it is open")
        expect(isinstance(command, Open | Fork), "ending", f"{event} unasked")
        if isinstance(command, Fork):
            session = self._fork(command, event)
        else:
            assert isinstance(command, Open)
            given = (event.session_id, event.streaming, event.trace_id)
            asked = (command.session_id, command.streaming, command.trace_id)
            expect(given == asked, "ending", f"{event} for {command}")
            timeout_s = self._config.idle_timeout_s if command.idle_timeout_s is None else command.idle_timeout_s
            session = SessionRecord(
                event.session_id,
                event.uid,
                command.streaming,
                command.namespace,
                timeout_s,
                command.priority,
                self.now,
            )
        self.sessions[event.session_id] = self._by_uid[event.uid] = session

    def _fork(self, command: Fork, event: SessionOpened) -> SessionRecord:
        source = self.sessions[command.session_id]
        asked = (command.new_session_id, source.streaming, command.trace_id)
        given = (event.session_id, event.streaming, event.trace_id)
        expect(given == asked, "ending", f"{event} for {command}")
        length = forked_len(command, source) if command.at_len is None else command.at_len
        session = SessionRecord(
            event.session_id,
            event.uid,
            source.streaming,
            source.namespace,
            source.idle_timeout_s,
            source.priority,
            self.now,
        )
        if source.streaming:
            session.history = source.history[:length]
            session.nodes = kept_names(source.nodes, length)
            self._marks[f"fork {source.slot}"] += 1
        else:
            nodes = source.nodes if command.at_turn is None else path_to(source.nodes, command.at_turn)
            session.nodes = dict(nodes) if command.at_len is None else cut(nodes, length)
            self._marks["fork ordinary"] += 1
        self._marks["fork beside a running turn"] += bool(source.live)
        return session

    def forked(self, event: SessionForked) -> None:
        command = self.asked.command
        expect(isinstance(command, Fork), "fork", f"{event} unasked")
        assert isinstance(command, Fork)
        source, session = self.sessions[command.session_id], self.sessions[command.new_session_id]
        given = (event.session_id, event.uid, event.source_id, event.source_uid)
        asked = (session.session_id, session.uid, source.session_id, source.uid)
        expect(given == asked, "fork", f"{event} for {command}")
        self._take_lengths(session, Lengths(event.history_len, event.kv_len), "fork")
        ids = session.longest[:-1] if session.slot is SlotState.HELD else session.longest
        found = self.contents.longest(session.namespace, ids)
        expect(event.kv_len == found, "fork", f"{event}: the cache has {found}")
        if session.streaming:
            self._check_fork_kv(source, session, event)

    def _check_fork_kv(self, source: SessionRecord, session: SessionRecord, event: SessionForked) -> None:
        page_size = self._config.page_size
        # What it holds ends before its last token; what it would find in the tree, with new ids behind, may not.
        is_held = session.slot is SlotState.HELD
        most = max(0, len(session.history) - is_held) // page_size * page_size
        expect(event.kv_len % page_size == 0 and event.kv_len <= most, "fork", f"{event}: at most {most} are shared")
        least = self.asked.kv_least
        expect(event.kv_len >= least, "fork", f"{event}: the other holds {source.slot_len}, so {least} are shared")
        expect(is_held or least == 0, "fork", f"{event}: {least} tokens are shared, and its slot does not hold them")
        is_empty = session.slot is SlotState.EMPTY
        is_right = is_empty == (not session.history) and is_held <= (event.kv_len > 0)
        expect(is_right, "fork", f"{event} leaves the slot {session.slot}")

    def truncated(self, event: SessionTruncated) -> None:
        command = self.asked.command
        expect(isinstance(command, Truncate), "truncate", f"{event} unasked")
        assert isinstance(command, Truncate)
        session = self.sessions[command.session_id]
        expect((event.session_id, event.uid) == (session.session_id, session.uid), "truncate", f"{event} misnamed")
        least, most = self.asked.cut_lens or (0, 0)
        if session.slot is not SlotState.HELD:
            expect(least == 0, "truncate", f"{event}: {least} of the {session.slot_len} held were to stay")
            if session.slot not in COMING_BACK:
                found = self.contents.longest(session.namespace, session.longest)
                expect(event.kv_len == found, "truncate", f"{event}: the cache has {found}")
        elif self.asked.cut_lens is not None:
            is_right = least <= event.kv_len <= most
            expect(is_right, "truncate", f"{event}: from {least} to {most} of the {session.slot_len} held are to stay")
            session.slot_len = session.kv_least = event.kv_len
            self._newly_held[session.uid] = session
        else:
            expected = session.slot_len if session.kv_least is None else session.kv_least
            is_right = event.kv_len == expected or (session.slot_len == event.kv_len > expected)
            expect(is_right, "truncate", f"{event}: {expected} of the {session.slot_len} held are to stay")
            session.slot_len = event.kv_len
            self._newly_held[session.uid] = session
        self._take_lengths(session, Lengths(event.history_len, event.kv_len), "truncate")

    def _take_lengths(self, session: SessionRecord, told: Lengths, oracle: str) -> None:
        self.asked.told = told
        expected = session.history_len
        expect(told.history_len == expected, oracle, f"{session.session_id}: {told}, but {expected} tokens are left")
        # A slot never has the KV of the last token; the tree may, and a turn with new ids behind it finds that.
        most = max(0, expected - 1) if session.slot is SlotState.HELD else expected
        expect(0 <= told.kv_len <= most, oracle, f"{session.session_id}: {told}, at most {most} can have KV")
        if not session.streaming:
            session.kv_told = (told.kv_len, self._evicted)
        elif session.slot in (SlotState.HELD, SlotState.EMPTY):
            expect(told.kv_len == session.slot_len, oracle, f"{session.session_id}: {told}, holds {session.slot_len}")

    def forgotten(self, event: TurnsForgotten) -> None:
        names = frozenset(event.turn_ids)
        what = f"{event}, to be forgotten: {sorted(self.asked.forgets)}"
        expect(len(names) == len(event.turn_ids) and names == self.asked.forgets, "forget", what)
        command = self.asked.command
        is_asked = isinstance(command, Submit | Truncate) and command.session_id == event.session_id
        expect(is_asked, "forget", what)
        self.asked.forgets = frozenset()
        if not isinstance(command, Submit):
            return
        session = self.sessions[event.session_id]
        expect(
            not set(self.asked.compiled.replaced) & set(session.live), "forget", f"{event} before those that run end"
        )
        session.nodes = {name: node for name, node in session.nodes.items() if name not in names}
        session.kv_told = None

    def slot_changed(self, event: SlotChanged) -> None:
        self._marks[f"slot {event.source} → {event.target}"] += 1
        session = self._by_uid.get(event.uid)
        expect(session is not None and session.session_id == event.session_id, "slot", f"{event}: no such session")
        assert session is not None
        command = self.asked.command
        if event.target is SlotState.HELD:
            self._newly_held[event.uid] = session
        is_forked = isinstance(command, Fork) and event.session_id == command.new_session_id
        is_truncated = isinstance(command, Truncate) and event.session_id == command.session_id
        follow_slot(session, event, is_forked=is_forked, is_truncated=is_truncated)
        if event.target is SlotState.RELEASED:
            del self._by_uid[event.uid]

    def moved(self, event: KvMoved) -> None:
        self._evicted += event.move is Move.EVICT
        self._marks.update(self.contents.take(event))

    def closed(self, event: SessionClosed) -> None:
        session = self.sessions.pop(event.session_id, None)
        expect(session is not None and session.uid == event.uid, "ending", f"{event}, but it was not open")
        assert session is not None
        self._marks[f"session {event.reason}"] += 1
        if not session.streaming:
            del self._by_uid[event.uid]
        expect(not session.live, "ending", f"{event.session_id} closed while {session.live} run")
        is_asked = session.is_closing == (event.reason is AbortReason.SESSION_CLOSED)
        expect(is_asked, "ending", f"{event.session_id} closed as {event.reason}, closing={session.is_closing}")
        expect(event.history_len == len(session.history), "rollback", f"{event}: wrong length")

    def settle(self) -> Lengths | None:
        """After the events of each call: nothing is owed. Returns what was told of lengths."""
        asked, self.asked = self.asked, Asked()
        expect(not asked.forgets, "forget", f"{asked.command}: {sorted(asked.forgets)} were not told")
        for session in self._newly_held.values():
            if session.slot is SlotState.HELD and session.session_id in self.sessions:
                self._check_held(session)
        self._newly_held.clear()
        for session in self.sessions.values():
            check_idle_slot(session)
            expect(not session.is_closing or bool(session.live), "ending", f"{session.session_id} is not closed yet")
        return asked.told

    def _check_held(self, session: SessionRecord) -> None:
        """It has all that it says; and what it keeps besides is good for something."""
        held, length = self._held(session), session.slot_len
        expect(held.covers(length), "held", f"{session.session_id} says {length}, and can't go on from there")
        if self._config.state_slots:
            idle = [at for at in held.own_states(length) if not held.covers(at)]
            expect(not idle, "held", f"{session.session_id} keeps states behind {idle} tokens, and can't use them")
        elif session.kv_least is None:
            border = length // self._config.page_size * self._config.page_size
            expect(held.covers(border), "held", f"{session.session_id} holds {length}, and could not share {border}")

    def check_tree_hit(self, turn: TurnRecord, event: TurnAdmitted) -> None:
        """A turn takes all that can be used of the cache, and no more.

        What Fork or Truncate said is there is found by a turn behind the longest path, unless pages were evicted.
        """
        hit = event.tokens_from_slot + event.tokens_from_tree
        if event.tokens_from_slot == 0:
            ids = (turn.prompt + turn.output)[:-1]
            most = self.contents.longest(turn.namespace, ids)
            least = self.contents.longest(turn.namespace, ids, with_fresh=False)
            is_right = least <= event.tokens_from_tree <= most
            expect(is_right, "match", f"rid {turn.rid}: {event}, but the cache has from {least} to {most}")
        self._marks["state hit"] += event.tokens_from_tree > 0 and self._config.state_slots > 0
        self._marks["window hit"] += event.tokens_from_tree > 0 and self._config.window is not None
        self._marks["hybrid slot hit"] += event.tokens_from_slot > 0 and self._is_hybrid
        session = self.sessions.get(turn.session_id) if turn.session_id is not None else None
        if session is None or session.kv_told is None:
            return
        kv_len, evicted = session.kv_told
        path = session.longest
        if evicted == self._evicted and len(turn.prompt) > len(path) and turn.prompt[: len(path)] == path:
            self._marks["kv told is found"] += kv_len > 0
            expect(hit >= kv_len, "fork", f"rid {turn.rid}: {hit} tokens cached, {kv_len} were said to be")
