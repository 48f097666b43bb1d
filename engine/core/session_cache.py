"""`SessionAwareCache`: a decorator over any prefix cache whose slots keep a streaming session's KV between turns."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.core.errors import require
from engine.core.events import EventLog, SlotChanged, SlotState
from engine.core.holding import Holding
from engine.core.ids import Rid
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.core.pools import Pools
from engine.core.prefix_cache import HoldingCache, Probe
from engine.core.radix import RadixTree
from engine.core.radix_node import Pinned
from engine.core.releases import hand_over, own_units, release_row
from engine.core.request import Phase, Request
from engine.core.rows import PageTable
from engine.core.sessions import Session

SLOT_MOVES: dict[SlotState, tuple[SlotState, ...]] = {
    SlotState.EMPTY: (SlotState.LENT, SlotState.HELD, SlotState.DEMOTED, SlotState.RELEASED),
    SlotState.HELD: (SlotState.LENT, SlotState.DEMOTED, SlotState.EMPTY, SlotState.RELEASED),
    SlotState.DEMOTED: (SlotState.LENT, SlotState.EMPTY, SlotState.RELEASED),
    SlotState.LENT: (SlotState.COMMITTING, SlotState.RETURNING),
    SlotState.COMMITTING: (SlotState.HELD, SlotState.DEMOTED, SlotState.EMPTY, SlotState.RETURNING),
    SlotState.RETURNING: (SlotState.HELD, SlotState.EMPTY, SlotState.DEMOTED, SlotState.COMMITTING),
    SlotState.RELEASED: (),
}
"""What a slot's state may become. A turn begins at LENT, from EMPTY and DEMOTED with nothing in the slot's hands.

A fork begins at EMPTY with a history. A session that is truncated to nothing is EMPTY again.
"""

FOLLOWS: dict[Phase, SlotState] = {
    Phase.COMMITTING: SlotState.COMMITTING,
    Phase.RETRACTING: SlotState.RETURNING,
    Phase.ROLLING_BACK: SlotState.RETURNING,
}
"""The state of a lent slot, by what its lessee is going through; other phases leave it as it is."""

IDLE_STATES = (SlotState.EMPTY, SlotState.HELD, SlotState.DEMOTED)

FULL, SWA, MAMBA, ROWS = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA, PoolKind.ROWS


@dataclass(slots=True, eq=False)
class SessionSlot:
    """The KV of one streaming session. Its pages belong to SESSION while HELD, to its lessee's REQUEST while LENT."""

    session: Session
    state: SlotState = SlotState.EMPTY
    lessee: Rid | None = None
    kv: Holding = field(default_factory=Holding)
    last_use: int = 0
    is_closing: bool = False
    owner: Owner = field(init=False)

    def __post_init__(self) -> None:
        self.owner = Owner(OwnerKind.SESSION, self.session.uid)


@dataclass(frozen=True, slots=True)
class IdleSlots:
    """Slots that give way under pressure, as the cache keeps count of them. For checks."""

    uids: tuple[int, ...] = ()
    """Least recently used first."""
    uids_with_row: tuple[int, ...] = ()
    num_units: Mapping[PoolKind, int] = field(default_factory=dict)
    """What they have of each pool of their own."""


class SessionAwareCache:
    """Requests of streaming sessions go through their slot; all others, and what no slot holds, go through `inner`.

    Slots between turns and unlocked leaves of the tree give way in one order of last use; a slot whose turn was
    retracted gives way first. A demoted slot's KV keeps its last use, so demoting doesn't make it look fresh.
    """

    def __init__(
        self, inner: HoldingCache, page_size: int, pools: Pools, table: PageTable, tree: RadixTree, log: EventLog
    ) -> None:
        self._inner = inner
        self._page_size = page_size
        self._pools = pools
        self._table = table
        self._tree = tree
        self._log = log
        self._slots: dict[int, SessionSlot] = {}
        self._idle: OrderedDict[int, SessionSlot] = OrderedDict()
        self._idle_rows: OrderedDict[int, SessionSlot] = OrderedDict()
        self._idle_units = dict.fromkeys(pools.ledger.pools, 0)

    def slots(self) -> tuple[SessionSlot, ...]:
        """Every slot that is not released. For checks and the snapshot."""
        return tuple(self._slots.values())

    def idle(self) -> IdleSlots:
        return IdleSlots(tuple(self._idle), tuple(self._idle_rows), dict(self._idle_units))

    # Life of a slot

    def open_session(self, session: Session) -> None:
        if session.streaming:
            slot = self._slots[session.uid] = SessionSlot(session)
            self._pools.ledger.follow(slot.owner, session.trace_id)

    def close_session(self, session: Session) -> None:
        slot = self._slots.get(session.uid)
        if slot is None:
            return
        if slot.state not in IDLE_STATES:
            slot.is_closing = True
            return
        self._leave_idle(slot)
        self._inner.discard(slot.owner, slot.kv)
        slot.kv = Holding()
        self._change(slot, SlotState.RELEASED)
        del self._slots[session.uid]
        self._pools.ledger.unfollow(slot.owner)

    def fork_session(self, source: Session, fork: Session) -> int:
        origin = self._slots.get(source.uid)
        if origin is None:
            return self._inner.fork_session(source, fork)
        if origin.state is SlotState.HELD:
            self._publish(origin)
        slot = self._slots[fork.uid]
        if fork.history:
            slot.kv = self._inner.borrow(fork.namespace, fork.history)
            self._rest(slot)
        return slot.kv.kv_committed_len or self._inner.fork_session(source, fork)

    def _publish(self, slot: SessionSlot) -> None:
        """Puts the slot's full pages where forks can share them. It keeps the right to them, and its tail."""
        self._leave_idle(slot)
        session = slot.session
        self._inner.publish(slot.owner, session.namespace, session.history, slot.kv)
        self._join_idle(slot)

    def truncate_session(self, session: Session) -> int:
        slot = self._slots.get(session.uid)
        if slot is None:
            return self._inner.truncate_session(session)
        if slot.state is SlotState.HELD:
            self._leave_idle(slot)
            self._inner.cut(slot.owner, slot.kv, session.history_len - 1)
            self._rest(slot)
        elif slot.state is SlotState.DEMOTED and not session.history:
            self._change(slot, SlotState.EMPTY)
        elif slot.state not in IDLE_STATES:
            return 0  # on its way back: it is cut when it arrives, and what it then has is not known yet
        return slot.kv.kv_committed_len or self._inner.truncate_session(session)

    def _change(self, slot: SessionSlot, state: SlotState) -> None:
        require(state in SLOT_MOVES[slot.state], f"slot of {slot.session.session_id!r}: {slot.state} → {state}")
        session = slot.session
        self._log.emit(SlotChanged(session.session_id, slot.state, state, slot.kv.kv_committed_len, session.uid))
        slot.state = state

    def _slot_of(self, request: Request) -> SessionSlot | None:
        return self._slots.get(request.session.uid) if request.session is not None else None

    def _lent_slot(self, request: Request) -> SessionSlot | None:
        slot = self._slot_of(request)
        return slot if slot is not None and slot.lessee == request.rid else None

    # Lending

    def probe(self, request: Request) -> Probe:
        slot = self._slot_of(request)
        if slot is None:
            return self._inner.probe(request)
        if slot.state not in IDLE_STATES:
            return Probe(is_ready=False)
        if slot.state is not SlotState.HELD:
            return self._inner.probe(request)
        kv = slot.kv
        shared = self._tree.pinned_by_lock(kv.lock) if kv.lock is not None else Pinned()
        states = kv.states.num_slots if kv.states is not None else 0
        return Probe(
            tokens_from_slot=kv.kv_committed_len,
            num_pages=kv.num_pages(self._page_size),
            has_row=kv.req_pool_idx is not None,
            pinned=Pinned(shared.pages + len(kv.pages), shared.swa_pages + len(kv.swa), shared.states + states),
            swa_pages=len(kv.swa),
            states_missing=kv.num_states_missing,
            is_pinned_window=True,
        )

    def acquire(self, request: Request, probe: Probe) -> None:
        slot = self._slot_of(request)
        if slot is None:
            self._inner.acquire(request, probe)
            return
        require(slot.lessee is None, f"slot of {slot.session.session_id!r} is lent to rid {slot.lessee} already")
        if slot.state is SlotState.HELD:
            self._leave_idle(slot)
            hand_over(self._pools, Move.LEND, slot.kv, slot.owner, request.owner)
            request.kv, slot.kv = slot.kv, Holding()
            request.kv.pin_len = request.kv.kv_committed_len  # what a roll-back goes back to
        else:
            self._inner.acquire(request, probe)
        slot.lessee = request.rid
        self._change(slot, SlotState.LENT)

    def shared_len(self, request: Request, length: int) -> int:
        return self._inner.shared_len(request, length)

    def leave_behind(self, request: Request) -> None:
        self._inner.leave_behind(request)

    def shares_prompt(self, request: Request) -> bool:
        # Only a session's first prompt goes to the tree; what comes after it changes hands by park, lend and return.
        is_first = self._slot_of(request) is None or request.base_len == 0
        return is_first and self._inner.shares_prompt(request)

    def cache_prompt(self, request: Request) -> None:
        if self.shares_prompt(request):
            self._inner.cache_prompt(request)

    def follow(self, request: Request) -> None:
        slot, state = self._lent_slot(request), FOLLOWS.get(request.phase)
        if slot is not None and state not in (None, slot.state):  # a retracted turn may be aborted while it returns
            self._change(slot, state)

    # Coming back

    def commit(self, request: Request) -> None:
        slot = self._slot_of(request)
        if slot is None:
            self._inner.commit(request)
        elif slot.lessee == request.rid:
            self._take_back(slot, request, Move.PARK)
        elif slot.state is SlotState.EMPTY:
            # Cut and committed while it waited, retracted: what KV it left came back before, and was of no history yet.
            self._change(slot, SlotState.DEMOTED)

    def roll_back(self, request: Request) -> None:
        slot = self._slot_of(request)
        if slot is None:
            self._inner.roll_back(request)
        elif slot.lessee == request.rid:
            self._take_back(slot, request, Move.RETURN)

    def _take_back(self, slot: SessionSlot, request: Request, move: Move) -> None:
        """Puts a lessee's KV of the session's history back into its slot and frees what is behind that.

        All of the history but its last token: that one is always computed by the next turn. After a commit the history
        includes the turn, after a roll-back it does not, and a Truncate may have cut it meanwhile.
        """
        slot.lessee = None
        self._inner.cut(request.owner, request.kv, slot.session.history_len - 1)
        hand_over(self._pools, move, request.kv, request.owner, slot.owner)
        slot.kv, request.kv = request.kv, Holding()
        if move is Move.PARK:  # what becomes of it until the next turn belongs to this one
            self._pools.ledger.follow(slot.owner, request.trace_id)
        self._rest(slot, is_first_in_line=request.phase is Phase.RETRACTING)
        if slot.is_closing:
            self.close_session(slot.session)

    def _rest(self, slot: SessionSlot, *, is_first_in_line: bool = False) -> None:
        """A slot without a lessee settles in the state that fits what it has."""
        if slot.kv.kv_committed_len > 0:
            if slot.state is not SlotState.HELD:
                self._change(slot, SlotState.HELD)
            self._join_idle(slot, is_first_in_line=is_first_in_line)
        else:
            self._change(slot, SlotState.DEMOTED if slot.session.history else SlotState.EMPTY)

    # Idle slots, least recently used first

    def _join_idle(self, slot: SessionSlot, *, is_first_in_line: bool = False) -> None:
        slot.last_use = 0 if is_first_in_line else self._tree.next_use()
        orders = [self._idle] if slot.kv.req_pool_idx is None else [self._idle, self._idle_rows]
        for order in orders:
            order[slot.session.uid] = slot
            order.move_to_end(slot.session.uid, last=not is_first_in_line)
        self._count_idle(slot, 1)
        if slot.kv.lock is not None:
            self._tree.set_idle(slot.kv.lock, True)

    def _leave_idle(self, slot: SessionSlot) -> None:
        if self._idle.pop(slot.session.uid, None) is None:
            return
        self._idle_rows.pop(slot.session.uid, None)
        self._count_idle(slot, -1)
        if slot.kv.lock is not None:
            self._tree.set_idle(slot.kv.lock, False)

    def _count_idle(self, slot: SessionSlot, sign: int) -> None:
        for pool, units in own_units(slot.kv):
            self._idle_units[pool] += sign * len(units)

    def _demote(self, slot: SessionSlot) -> None:
        self._leave_idle(slot)
        session = slot.session
        self._inner.absorb(Move.DEMOTE, slot.owner, session.namespace, session.history, slot.kv, slot.last_use)
        slot.kv = Holding()
        self._change(slot, SlotState.DEMOTED)

    # Room

    def reclaimable(self, pool: PoolKind) -> int:
        if pool is ROWS:
            return self._inner.reclaimable(ROWS) + len(self._idle_rows)
        return self._inner.reclaimable(pool) + self._idle_units[pool]

    def make_room(self, pages: int, rows: int, states: int = 0) -> bool:
        free = self._pools.free
        if rows == 0 and states == 0 and pages <= free(FULL) and not (self._pools.has_swa and pages > free(SWA)):
            return True  # as for almost every page of a turn that decodes
        wanted = {FULL: pages, ROWS: rows}
        if self._pools.has_swa:
            wanted[SWA] = pages
        if states:
            wanted[MAMBA] = states
        if any(count > free(pool) + self.reclaimable(pool) for pool, count in wanted.items()):
            return False
        for pool, count in wanted.items():
            while pool is not ROWS and (missing := count - free(pool)) > 0:
                self._free_oldest(pool, missing)
        while rows > free(ROWS):
            self._release_oldest_row()
        return True

    def _release_oldest_row(self) -> None:
        _, slot = self._idle_rows.popitem(last=False)
        self._idle_units[ROWS] -= 1
        release_row(self._pools, self._table, slot.owner, slot.kv)

    def _free_oldest(self, pool: PoolKind, missing: int) -> None:
        slot = next(iter(self._idle.values()), None)
        node_use = self._tree.lru_use(pool)
        if node_use is not None and (slot is None or node_use <= slot.last_use):
            self._tree.evict(missing, pool)
        else:
            assert slot is not None, f"{missing} of {pool} are missing though {self.reclaimable(pool)} are reclaimable"
            self._demote(slot)
