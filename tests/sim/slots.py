"""The oracle of session slots: legal changes of state, and KV that survives every exit but a demotion."""

from engine.core.events import SlotChanged, SlotState
from tests.sim.records import SessionRecord, expect

SLOT_MOVES: dict[SlotState, tuple[SlotState, ...]] = {
    SlotState.EMPTY: (SlotState.LENT, SlotState.RELEASED),
    SlotState.HELD: (SlotState.LENT, SlotState.DEMOTED, SlotState.RELEASED),
    SlotState.LENT: (SlotState.COMMITTING, SlotState.RETURNING),
    SlotState.COMMITTING: (SlotState.HELD, SlotState.RETURNING, SlotState.DEMOTED),
    SlotState.RETURNING: (SlotState.HELD, SlotState.EMPTY, SlotState.DEMOTED, SlotState.COMMITTING),
    SlotState.DEMOTED: (SlotState.LENT, SlotState.RELEASED),
    SlotState.RELEASED: (),
}
"""Written from the design, not read from the core: the two must agree."""


def follow_slot(session: SessionRecord, event: SlotChanged) -> None:
    """Takes one change of state. A roll-back must give the slot back what it had at the last commit."""
    what = f"slot of {event.session_id} {event.source} → {event.target}, {event.kv_committed_len} tokens"
    expect(event.source is session.slot, "slot", f"{what}, but it was {session.slot}")
    expect(event.target in SLOT_MOVES[event.source], "slot", f"{what}: not in the table")
    if event.source is SlotState.RETURNING and session.slot_len > 0 and event.target is not SlotState.COMMITTING:
        kept = event.kv_committed_len if event.target is SlotState.HELD else 0
        # What was short may have grown: history that the turn computed anew is kept.
        most = len(session.history) - 1 if session.is_kv_short else session.slot_len
        expect(session.slot_len <= kept <= most, "rollback", f"{what}: it had {session.slot_len} at the last commit")
    if event.source is SlotState.RETURNING and event.target is SlotState.HELD and session.slot_len == 0:
        session.is_kv_short = True  # a demoted session's turn was broken off while it computed its history anew
    if event.target is SlotState.HELD:
        session.slot_len = event.kv_committed_len
    elif event.target in (SlotState.EMPTY, SlotState.DEMOTED):
        session.slot_len = 0
    session.slot = event.target


def check_idle_slot(session: SessionRecord) -> None:
    """Between turns a held slot has the KV of all of its history but the last id."""
    if session.slot is not SlotState.HELD or session.live:
        return
    expected = len(session.history) - 1
    is_right = session.slot_len <= expected if session.is_kv_short else session.slot_len == expected
    expect(is_right, "slot", f"{session.session_id} holds {session.slot_len} of {expected}")
