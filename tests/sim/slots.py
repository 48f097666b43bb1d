"""The oracle of session slots: legal changes of state, and KV that survives every exit but a demotion."""

from engine.core.events import SlotChanged, SlotState
from tests.sim.records import SessionRecord, expect

SLOT_MOVES: dict[SlotState, tuple[SlotState, ...]] = {
    SlotState.EMPTY: (SlotState.LENT, SlotState.HELD, SlotState.DEMOTED, SlotState.RELEASED),
    SlotState.HELD: (SlotState.LENT, SlotState.DEMOTED, SlotState.EMPTY, SlotState.RELEASED),
    SlotState.LENT: (SlotState.COMMITTING, SlotState.RETURNING),
    SlotState.COMMITTING: (SlotState.HELD, SlotState.RETURNING, SlotState.DEMOTED, SlotState.EMPTY),
    SlotState.RETURNING: (SlotState.HELD, SlotState.EMPTY, SlotState.DEMOTED, SlotState.COMMITTING),
    SlotState.DEMOTED: (SlotState.LENT, SlotState.EMPTY, SlotState.RELEASED),
    SlotState.RELEASED: (),
}
"""Written from the design, not read from the core: the two must agree."""
COMING_BACK = (SlotState.RETURNING, SlotState.COMMITTING)


def follow_slot(session: SessionRecord, event: SlotChanged, *, is_forked: bool, is_truncated: bool) -> None:
    """Takes one change of state. A roll-back must give the slot back what it had at the last commit.

    `is_forked`: the session is being made by a fork. `is_truncated`: it is being cut.
    """
    what = f"slot of {event.session_id} {event.source} → {event.target}, {event.kv_committed_len} tokens"
    expect(event.source is session.slot, "slot", f"{what}, but it was {session.slot}")
    expect(event.target in SLOT_MOVES[event.source], "slot", f"{what}: not in the table")
    is_filled = event.source is SlotState.EMPTY and event.target in (SlotState.HELD, SlotState.DEMOTED)
    # A first turn that is cut while it waits, retracted, leaves a history and no KV.
    is_cut = event.target is SlotState.DEMOTED and bool(session.live)
    expect(is_forked or is_cut or not is_filled, "slot", f"{what}: only a fork begins with KV")
    is_emptied = event.source in (SlotState.HELD, SlotState.DEMOTED) and event.target is SlotState.EMPTY
    expect(is_truncated or not is_emptied, "slot", f"{what}: only a cut to nothing does that")
    if event.source is SlotState.COMMITTING and event.target is SlotState.EMPTY:
        expect(not session.history, "slot", f"{what}: it has {len(session.history)} tokens")  # cut on its way back
    if event.source is SlotState.RETURNING and session.slot_len > 0 and event.target is not SlotState.COMMITTING:
        _check_return(session, event, what)
    if event.source is SlotState.RETURNING and event.target is SlotState.HELD and session.slot_len == 0:
        session.kv_least = 0  # a demoted session's turn was broken off while it computed its history anew
    if event.target is SlotState.LENT:
        session.lent_len = session.slot_len if event.source is SlotState.HELD else 0
    elif event.target in (SlotState.EMPTY, SlotState.DEMOTED):
        session.lent_len = 0
    if event.target is SlotState.HELD:
        session.slot_len = event.kv_committed_len
        if is_forked:
            session.kv_least = event.kv_committed_len
    elif event.target in (SlotState.EMPTY, SlotState.DEMOTED):
        session.slot_len = 0
    session.slot = event.target


def _check_return(session: SessionRecord, event: SlotChanged, what: str) -> None:
    kept = event.kv_committed_len if event.target is SlotState.HELD else 0
    # What was short may have grown: history that the turn computed anew is kept.
    most = len(session.history) - 1 if session.kv_least is not None else session.slot_len
    least = session.slot_len if session.kv_least is None else min(session.slot_len, session.kv_least)
    expect(least <= kept <= most, "rollback", f"{what}: it had {session.slot_len} at the last commit")


def check_idle_slot(session: SessionRecord) -> None:
    """Between turns a held slot has the KV of all of its history but the last id."""
    if session.slot is not SlotState.HELD or session.live:
        return
    most = len(session.history) - 1
    least = most if session.kv_least is None else session.kv_least
    expect(least <= session.slot_len <= most, "slot", f"{session.session_id} holds {session.slot_len} of {most}")
