"""`tenure pools --history`: how the pools of a running server went over time, and what it counted since it serves."""

import time
from collections.abc import Mapping

from services.cli.pool_chart import Stretch, format_chart, format_legend, make_stretches
from services.cli.run import run_work
from services.cli.top_view.numbers import format_span
from services.client import Pool, connect
from services.client.history import History, Totals
from services.client.pools import name_units


def run_pool_history(target: str, last_s: float | None) -> int:
    return run_work(target, _pool_history(target, last_s))


async def _pool_history(target: str, last_s: float | None) -> int:
    async with connect(target) as client:
        history = await client.history(last_s, with_facts=False)
    print(format_pool_history(history))
    return 0


def format_pool_history(history: History) -> str:
    """A chart for each pool, what the signs mean, and the totals."""
    stretches = make_stretches(history.samples, history.interval_s)
    pools = history.samples[-1].pools if stretches else ()
    charts = [_format_pool(pool, stretches, with_work=place == 0) for place, pool in enumerate(pools)]
    return "\n\n".join([*charts, format_legend(), format_totals(history)])


def _format_pool(pool: Pool, stretches: list[Stretch], *, with_work: bool) -> str:
    gap = "\n" if pool.quarantined else " "  # in one line it would be wider than the chart
    shown_s, each_s = sum(stretch.seconds for stretch in stretches), stretches[-1].seconds
    times = f"the last {format_span(shown_s)}, {each_s:g} s a line, with the books of its fullest second"
    head = f"{_describe_size(pool)};{gap}{times}"
    return f"{head}\n{format_chart(pool.kind, stretches, with_work=with_work)}"


def _describe_size(pool: Pool) -> str:
    """All units, also those out of circulation, for the rows of the chart add up to them."""
    whole = pool.total + pool.quarantined
    units = f"pages of {pool.page_size}" if pool.page_size else name_units(pool.kind)
    size = f"{whole:,} rows" if pool.kind == "rows" else f"{pool.kind}: {whole:,} {units}"
    return f"{size}, {pool.quarantined:,} of them out of circulation" if pool.quarantined else size


def format_totals(history: History) -> str:
    """Counts since the server began to serve, a line for each matter."""
    totals = history.totals
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(history.started_s))
    ended = sum(totals.endings.values())
    lines = {
        "turns": f"{totals.turns_accepted:,} accepted, {ended:,} ended, {totals.turns_accepted - ended:,} alive",
        "endings": _list_counts(totals.endings),
        "contexts": _describe_contexts(totals),
        "generated": f"{totals.tokens_generated:,} tokens",
        "steps": f"{totals.steps:,}, of which {totals.steps_failed:,} failed",
        "sessions": f"{totals.sessions_opened:,} opened, {sum(totals.sessions_closed.values()):,} closed"
        + (f" ({_list_counts(totals.sessions_closed)})" if totals.sessions_closed else ""),
        "pressure": f"sessions demoted {totals.demotions:,}, turns retracted {totals.retractions:,}",
        "moves": _list_counts(totals.moves),
    }
    width = max(map(len, lines)) + 2
    told = (f"  {name.ljust(width)}{line}" for name, line in lines.items())
    return "\n".join((f"since {started}, {format_span(history.now_s - history.started_s)} ago:", *told))


def _describe_contexts(totals: Totals) -> str:
    """As in `121 tokens = 102 slot (84 %) + 0 tree (0 %) + 19 computed (16 %)`."""
    parts = {"slot": totals.tokens_from_slot, "tree": totals.tokens_from_tree, "computed": totals.tokens_to_compute}
    whole = sum(parts.values())
    shares = (f"{count:,} {name} ({100 * count / max(whole, 1):.0f} %)" for name, count in parts.items())
    return f"{whole:,} tokens = {' + '.join(shares)}"


def _list_counts(counts: Mapping[str, int]) -> str:
    """The largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered) or "none"
