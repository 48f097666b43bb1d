"""`tenure snapshot`: all that runs on a server, at one instant."""

from collections.abc import Sequence

from services.cli.books import format_equations
from services.cli.held import held_counts, held_heads
from services.cli.run import run_work
from services.cli.sessions import format_sessions
from services.cli.tables import format_table
from services.client import Plan, ServerState, TurnInfo, connect

_TURN_COLUMNS = ("number", "turn", "session", "phase", "prompt", "generated", "kv tokens")


def run_snapshot(target: str) -> int:
    return run_work(target, _snapshot(target))


async def _snapshot(target: str) -> int:
    async with connect(target) as client:
        state = await client.snapshot()
    print(format_state(state))
    return 0


def format_state(state: ServerState) -> str:
    """Pools, turns, sessions and steps in flight, one part below the other."""
    kinds = [pool.kind for pool in state.pools]
    heads = (*_TURN_COLUMNS, *held_heads(kinds), "in flight")
    turns = [heads, *(_cells(turn, kinds) for turn in state.turns)] if state.turns else []
    return "\n\n".join(
        (
            format_equations(state.pools),
            format_table(turns) if turns else "no turn runs or waits",
            format_sessions(state.sessions, kinds),
            _describe_plans(state),
        )
    )


def _cells(turn: TurnInfo, kinds: Sequence[str]) -> tuple[str, ...]:
    lengths = (turn.context_tokens, turn.completion_tokens, turn.kv_tokens)
    numbers = (*lengths, *held_counts(turn, kinds), turn.steps_in_flight)
    return (str(turn.number), turn.turn_id, turn.session_id or "-", turn.phase, *map(str, numbers))


def _describe_plans(state: ServerState) -> str:
    if not state.plans:
        return f"{state.steps} steps so far, none in flight"
    return "\n".join([f"{state.steps} steps so far; in flight:", *map(_describe_plan, state.plans)])


def _describe_plan(plan: Plan) -> str:
    rows = "; ".join(
        f"turn {row.number} computes tokens {row.start} to {row.start + row.tokens - 1}" for row in plan.rows
    )
    return f"  step {plan.step}: {rows}"
