"""What is remembered of the last hour, as plain data. All times are seconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.snapshot import PoolBooks


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval. Counts are of what happened in it; books, and sessions and turns alive, are as at its end."""

    time_s: float
    """Its end, or the time it was read where it is not over yet."""
    pools: tuple[PoolBooks, ...]
    moves: Mapping[str, int]
    """Hand-overs by the name of the move, those of all pools."""
    moved_units: Mapping[str, int]
    steps: int
    """Answered ones, of which `steps_failed` failed."""
    steps_failed: int
    tokens_computed: int
    """Tokens of the steps that did not fail."""
    tokens_generated: int
    turns_ended: int
    sessions_open: int
    turns_running: int
    """Admitted, not retracted since and not ended."""
    turns_waiting: int
    step_ms_p50: float
    """From plan to answer; 0 without any step."""
    step_ms_max: float
    first_token_ms_p50: float
    """From a turn's acceptance to its first token; 0 without any."""
    first_token_ms_max: float
    num_facts: int
    """Session facts that were told in it, kept or not."""


@dataclass(frozen=True, slots=True)
class SessionFact:
    """Something that happened to a session, to one of its turns or to its KV."""

    time_s: float
    session_id: str
    session_number: int
    """The uid: a name may be opened again while its predecessor's KV still drains."""
    what: str
    """`opened`, `closed`, `forked`, `truncated`, `forgotten`, `turn_accepted`, `turn_admitted`, `turn_retracted`,
    `turn_ended`, `history`, `kv`, or a move."""
    detail: str
    """Opened: its kind. Forked: from which session. Closed: why. Forgotten: the turns. Accepted: `new=N` tokens that
    are not history. Admitted: where the context's KV comes from, `slot=N tree=N computed=N`. Ended: how. `history`:
    whether the turn is `committed` or `rolled_back`. `kv`: the new state. A move: the pool."""
    units: int
    """Units that moved: of the pool that `detail` names."""
    tokens: int
    """Of history (closed, forked, truncated, `history`), context (accepted, admitted), output (retracted, ended) or KV
    (`kv`)."""
    turn_id: str
    """Empty where it is not about a turn."""
    step: int
    """The newest step that was planned by then."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the server began to serve. turns_accepted - sum(endings) turns are alive."""

    turns_accepted: int
    endings: Mapping[str, int]
    """Ended turns, by their outcome."""
    moves: Mapping[str, int]
    tokens_from_slot: int
    """This and the next two: the contexts of all turns admitted so far, each counted once, at its first admission."""
    tokens_from_tree: int
    tokens_to_compute: int
    tokens_generated: int
    """Those included that were cut or rolled back later."""
    steps: int
    steps_failed: int
    retractions: int
    demotions: int
    sessions_opened: int
    sessions_closed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered, oldest first."""

    now_s: float
    started_s: float
    interval_s: float
    samples: tuple[Sample, ...]
    """Without gaps; the last one may not be over yet."""
    facts: tuple[SessionFact, ...]
    facts_dropped: int
    """Facts of the samples' time that are not kept any more."""
    totals: Totals
