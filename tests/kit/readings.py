"""What a server might say of itself to `tenure top`, made up."""

from dataclasses import replace

from services.cli.top_view.reading import Reading
from services.client import (
    History,
    Incident,
    ModelInfo,
    Plan,
    Pool,
    PoolStats,
    Sample,
    ServerState,
    SessionInfo,
    Totals,
    TurnInfo,
)

NOW_S = 1_800_000_000.0
MODEL = ModelInfo("smollm2-135m on torch cpu", 2048, 49152, 16, {"full": 256, "rows": 64}, ("chat", "sampling"))
INCIDENT = Incident(
    "inc-7f3a9c", NOW_S - 185, "forward_stuck", "step 4182 has not been answered for 10.2 s: 3 turns end", None, True
)
FULL = Pool("full", 256, 140, 30, 16, 40, 30, draining=0, quarantined=0, page_size=16)
SWA = Pool("swa", 90, 60, 4, 6, 12, 8, draining=0, quarantined=0, page_size=16)
STATES = Pool("mamba", 20, 9, 1, 2, 3, 5, draining=0, quarantined=0, page_size=0)
ROWS = Pool("rows", 64, 51, 0, 0, 10, 3, draining=0, quarantined=0, page_size=0)
STATS = PoolStats((FULL, ROWS), 12, 3, 1, 10, 2, steps=12_345, checks_run=12_400, balanced=True)
IDLE_STATS = PoolStats((), 0, 0, 0, 0, 0, steps=1, checks_run=1, balanced=True)
NO_TOTALS = Totals(0, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})


def make_turn(number: int, *, turn_id: str | None = None, session_id: str | None = None) -> TurnInfo:
    return TurnInfo(
        number=number,
        turn_id=f"turn-{number}" if turn_id is None else turn_id,
        session_id=session_id,
        phase="running",
        context_tokens=100 + number,
        completion_tokens=number,
        kv_tokens=100 + 2 * number,
        kv_pages=7 + number // 8,
        steps_in_flight=1,
    )


def make_session(number: int, *, session_id: str | None = None, kv_state: str = "held") -> SessionInfo:
    return SessionInfo(
        session_id=f"session-{number}" if session_id is None else session_id,
        streaming=True,
        session_len=40 * number,
        live_turn_ids=(f"turn-{number}",) if kv_state == "lent" else (),
        kv_state=kv_state,
        kv_tokens=40 * number,
        kv_pages=3 * number,
    )


def make_sample(time_s: float, *, steps: int = 12, pools: tuple[Pool, ...] = (FULL, ROWS)) -> Sample:
    is_busy = steps > 0
    return Sample(
        time_s=time_s,
        pools=pools,
        moves={"grant": steps // 2, "release": 1, "park": 2, "lend": 2} if is_busy else {},
        moved_units={},
        steps=steps,
        steps_failed=0,
        tokens_computed=steps * 4,
        tokens_generated=steps * 3,
        turns_ended=1 if is_busy else 0,
        sessions_open=12,
        turns_running=3,
        turns_waiting=1,
        step_ms_p50=70.0 + steps if is_busy else 0,
        step_ms_max=140.0 if is_busy else 0,
        first_token_ms_p50=310.0 if is_busy else 0,
        first_token_ms_max=402.0 if is_busy else 0,
    )


def make_history(*samples: Sample) -> History:
    """Of a server that has served for two hours."""
    return History(NOW_S, NOW_S - 7300, 1.0, samples, (), 0, NO_TOTALS)


def make_course(*steps: int) -> History:
    """A sample for each count of steps, the last one over just now."""
    first_s = NOW_S - len(steps) + 1
    return make_history(*(make_sample(first_s + idx, steps=count) for idx, count in enumerate(steps)))


def make_reading(
    turns: tuple[TurnInfo, ...] = (),
    sessions: tuple[SessionInfo, ...] = (),
    *,
    pools: tuple[Pool, ...] = (FULL, ROWS),
    incidents: tuple[Incident, ...] = (),
    is_ready: bool = True,
) -> Reading:
    course = [8 + (idx * 7) % 11 for idx in range(60)]
    state = ServerState(12_345, pools, turns, sessions, (Plan(12_346, ()),) if turns else ())
    stats = replace(STATS, pools=pools, sessions_open=len(sessions), turns_running=len(turns))
    return Reading(is_ready, MODEL, stats, state, make_course(*course), incidents)
