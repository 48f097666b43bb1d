"""What a run must have reached to prove anything: one mark for each way that there is."""

from collections import Counter
from collections.abc import Mapping

from engine.core.commands import AbortReason, FinishReason
from engine.core.errors import RefusalReason
from engine.core.events import SlotState
from engine.core.ownership import Move

SEEDS_FOR_MARKS = 100
"""From this many seeds on, a mark without a hit is a failure: the run did not prove what it claims."""
SEEDS_FOR_RARE_MARKS = 2000
"""The same for what takes several things at once."""

MOVES = tuple(move for move in Move if move is not Move.QUARANTINE)
SESSION_ENDS = (AbortReason.SESSION_CLOSED, AbortReason.SESSION_EXPIRED)
TURN_ENDS = tuple(reason for reason in AbortReason if reason is not AbortReason.SESSION_EXPIRED)
"""A session never expires during a turn, so no turn ends that way."""
PHASES = ("waiting", "running", "retracting", "committing", "rolling_back")
REFUSALS = tuple(reason for reason in RefusalReason if reason is not RefusalReason.FAULT_IMPOSSIBLE)
"""Those that a command can meet."""
SLOT_CHANGES = {
    SlotState.EMPTY: (SlotState.LENT, SlotState.HELD, SlotState.DEMOTED, SlotState.RELEASED),
    SlotState.HELD: (SlotState.LENT, SlotState.DEMOTED, SlotState.EMPTY, SlotState.RELEASED),
    SlotState.LENT: (SlotState.COMMITTING, SlotState.RETURNING),
    SlotState.COMMITTING: (SlotState.HELD, SlotState.RETURNING),
    SlotState.RETURNING: (SlotState.HELD, SlotState.EMPTY, SlotState.DEMOTED),
    SlotState.DEMOTED: (SlotState.LENT, SlotState.EMPTY, SlotState.RELEASED),
}
TURNS_AND_STEPS = (
    "retraction",
    "resumed",
    "chunked prompt",
    "batched rows",
    "sampled input in flight",
    "over-run",
    "draining",
    "demoted under pressure",
    "row demoted",
    "hit slot",
    "hit tree",
    "flush",
    "flush while turns run",
    "finish_at",
    "finish_at none",
    "finish_at too many",
    "early ack",
    "sampled turn",
    "refused stateless turn id",
)
ORDER = (
    "turn with a priority",
    "priority overtakes",
    "prefix wait",
    "lane switch",
    "retracted for the last time",
    "protected from retraction",
)
BRANCHES = (
    "drop previous output",
    "offset",
    "offset off a page edge",
    "replace everything",
    "replace",
    "replace clears",
    "replace finished",
    "replace live parent",
    "replace running",
    "replace waiting",
    "turn that keeps",
    "keep running",
    "keep waiting",
    "keep retracting",
    "kept",
    "end kept",
    "close while it drains",
)
LINEAGE = (
    "fork ordinary",
    "fork beside a running turn",
    *(f"fork {state}" for state in (SlotState.HELD, SlotState.LENT, SlotState.DEMOTED, SlotState.EMPTY)),
    "kv told is found",
    "truncate ordinary",
    "truncate nothing",
    "truncate to 0",
    "truncate inside the cache",
    *(f"truncate {state}" for state in (SlotState.HELD, SlotState.DEMOTED, SlotState.RETURNING, SlotState.COMMITTING)),
)
SPECULATION = (
    "turn that may draft",
    "drafts planned",
    "drafts accepted",
    "all drafts accepted",
    "drafts rejected",
    "drafts failed",
    "allocated > committed",
)
KINDS = (
    *(f"{move} {pool}" for pool in ("swa", "mamba") for move in MOVES),
    "hybrid slot hit",
    "window hit",
    "state hit",
    "window left behind",
    "pinned window",
    "four states",
    "tombstone",
    "revived",
)
"""Windows and states: each move of theirs, what is found and what is left behind."""
RARE_MARKS = (
    "publish swa",
    "publish mamba",
    "return swa",
    "return mamba",
    "revived",
    "pinned window",
    "close retracting",
    "drain close retracting",
    "drain close rolling_back",
    "keep retracting",
    "keep waiting",
    "kv told is found",
    "protected from retraction",
    "truncate returning",
    "truncate committing",
    f"truncate {SlotState.DEMOTED}",
    "drafts failed",
    "fork demoted",
    f"slot {SlotState.RETURNING} → {SlotState.DEMOTED}",
    f"slot {SlotState.DEMOTED} → {SlotState.EMPTY}",
    f"slot {SlotState.COMMITTING} → {SlotState.RETURNING}",
)
"""Of the required ones."""
REQUIRED_MARKS: tuple[str, ...] = (
    *(f"move {move}" for move in MOVES),
    *(f"end {reason}" for reason in FinishReason),
    *(f"end {reason}" for reason in TURN_ENDS),
    *(f"session {reason}" for reason in SESSION_ENDS),
    *(f"abort {phase}" for phase in (*PHASES, "absent")),
    *(f"close {phase}" for phase in (*PHASES, "idle")),
    *(f"drain close {phase}" for phase in (*PHASES, "idle")),
    *(f"slot {source} → {target}" for source, targets in SLOT_CHANGES.items() for target in targets),
    *(f"refused {reason}" for reason in REFUSALS),
    *TURNS_AND_STEPS,
    *ORDER,
    *BRANCHES,
    *LINEAGE,
    *SPECULATION,
    *KINDS,
)


def missing_marks(marks: Mapping[str, int], least: int = 1, *, with_rare: bool = True) -> list[str]:
    """Marks that must be hit so often and were not."""
    left_out = () if with_rare else RARE_MARKS
    return [mark for mark in REQUIRED_MARKS if marks.get(mark, 0) < least and mark not in left_out]


def count_endings(marks: Counter[str]) -> dict[str, int]:
    """How turns and sessions ended, most frequent first."""
    endings = {mark: count for mark, count in marks.items() if mark.startswith(("end ", "session "))}
    return dict(sorted(endings.items(), key=lambda item: (-item[1], item[0])))
