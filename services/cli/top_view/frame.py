"""The whole picture: head, pools, rates, turns, sessions and keys, cut to the terminal's size."""

from dataclasses import dataclass
from datetime import UTC, datetime

from rich.text import Text

from services.cli.top_view.inert import crop, tame
from services.cli.top_view.numbers import format_count, format_span
from services.cli.top_view.owners import render_pools
from services.cli.top_view.rates import render_rates
from services.cli.top_view.reading import Reading, Sort
from services.cli.top_view.tables import render_sessions, render_turns, share_height
from services.client import History, Incident, PoolStats, ServerState

_LASTING_KINDS = ("forward_stuck", "loop_stuck", "failing", "slow_start", "slow_end", "halted")
"""Incidents that keep a server from being ready until they are over."""
_LENT = "lent"
"""State of the KV of a session whose turn has it."""
_BLANKS_FROM_HEIGHT = 30
"""Lower terminals have no blank lines between the parts."""
_AT_ONCE_S, _EXACT_BELOW_S = 0.05, 10.0
"""Shorter incidents have no length; that of longer ones is told in whole seconds."""
_WORDY_WIDTH = 100
"""Wider terminals are told when the server started, too."""


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show at one moment."""

    target: str
    reading: Reading | None
    """The last one that came; None before the first."""
    sort: Sort
    silent_s: float | None = None
    """For how long nobody has answered; None: the last reading is of now."""
    silence: str = ""
    """Why."""
    is_paused: bool = False


def render_frame(view: View, width: int, height: int, keys: str = "") -> list[Text]:
    """At most `height` lines of at most `width` cells. `keys`, when there are any, are told in the last one."""
    has_blanks = height >= _BLANKS_FROM_HEIGHT
    parts = [_render_head(view, width)]
    if view.reading is not None and view.reading.state is not None:
        parts.append(render_pools(view.reading.state.pools, width))
    if view.reading is not None and view.reading.history is not None:
        parts.append(render_rates(view.reading.history, width))
    lines = _stack(parts, has_blanks=has_blanks)
    room = height - len(lines) - (1 if keys else 0) - (2 if has_blanks else 0)
    tables = _render_tables(view, width, room)
    lines = _stack([lines, *tables], has_blanks=has_blanks)[: height - (1 if keys else 0)]
    if keys:
        lines += [Text()] * (height - 1 - len(lines)) + [Text(keys, style="dim")]
    return [crop(line, width) for line in lines]


def _stack(parts: list[list[Text]], *, has_blanks: bool) -> list[Text]:
    lines: list[Text] = []
    for part in parts:
        if part and lines and has_blanks:
            lines.append(Text())
        lines += part
    return lines


def _render_tables(view: View, width: int, height: int) -> list[list[Text]]:
    state = view.reading.state if view.reading is not None else None
    if state is None or height < 1:
        return []
    kinds = [pool.kind for pool in state.pools]
    turns_height, sessions_height = share_height(len(state.turns), len(state.sessions), height)
    return [
        render_turns(state.turns, view.sort, width, turns_height, kinds),
        render_sessions(state.sessions, view.sort, width, sessions_height, kinds),
    ]


def _render_head(view: View, width: int) -> list[Text]:
    reading = view.reading
    title = Text().append("tenure top  ", style="bold").append(tame(view.target))
    if reading is not None and reading.model is not None:
        title.append(f"  {tame(reading.model.name)}", style="bold")
    lines = [_spread(title, _render_state(view, is_wordy=width >= _WORDY_WIDTH), width)]
    if view.silent_s is not None:
        lines.append(Text(tame(view.silence), style="red"))
    if reading is None:
        return lines
    if reading.stats is not None:
        lines.append(_render_books(reading.stats, reading.state, width))
    if reading.incidents:
        lines.append(crop(_render_incident(reading.incidents[-1], reading.history), width))
    return lines


def _spread(left: Text, right: Text, width: int) -> Text:
    """Both on one line; what is at the right is whole in any case."""
    room = max(width - right.cell_len - 2, 0)
    line = crop(left, room).copy()
    line.append(" " * (width - right.cell_len - line.cell_len))
    return line.append_text(right)


def _render_state(view: View, *, is_wordy: bool) -> Text:
    state = Text()
    if view.is_paused:
        state.append("paused  ", style="bold yellow")
    if view.silent_s is not None:
        return state.append(f" NOT ANSWERING for {format_span(view.silent_s)} ", style="bold white on red")
    reading = view.reading
    if reading is None:
        return state.append("connecting", style="dim")
    if reading.is_ready:
        state.append("ready", style="bold green")
    else:
        state.append(f" NOT READY{_find_cause(reading)} ", style="bold white on red")
    if reading.history is not None:
        started = datetime.fromtimestamp(reading.history.started_s, UTC)
        up_s = reading.history.now_s - reading.history.started_s
        since = f", since {started:%d %b %H:%M} UTC" if is_wordy else ""
        state.append(f"  up {format_span(up_s)}{since}", style="dim")
    return state


def _find_cause(reading: Reading) -> str:
    lasting = [
        incident for incident in reading.incidents if incident.over_s is None and incident.kind in _LASTING_KINDS
    ]
    if lasting:
        return f": {tame(lasting[-1].kind)}"
    if reading.refusal is not None:
        return f": {tame(reading.refusal)}"
    return ""


def _render_books(stats: PoolStats, state: ServerState | None, width: int) -> Text:
    """As many facts as there is room for, the weightiest first."""
    line = Text()
    if stats.balanced:
        line.append("books balance", style="green")
    else:
        line.append(" THE BOOKS DO NOT BALANCE ", style="bold white on red")
    facts = [
        f"turns {stats.turns_running} running, {stats.turns_waiting} waiting",
        f"sessions {format_count(stats.sessions_open)} ({_tell_slots(stats, state)}demoted {stats.slots_demoted})",
        f"{format_count(stats.steps)} steps",
        f"{format_count(stats.checks_run)} checks",
    ]
    for fact in facts:
        if line.cell_len + len(fact) + 3 > width:
            break
        line.append(" · ", style="dim").append(fact)
    return line


def _tell_slots(stats: PoolStats, state: ServerState | None) -> str:
    """As `tenure pools` says it, and how many of them a turn has: `with KV 8, 7 of them lent, `."""
    lent = sum(session.kv_state == _LENT for session in state.sessions) if state is not None else 0
    # Both were asked at almost the same moment: there may be more by now than there were.
    of_them = f", {min(lent, stats.slots_held)} of them lent" if lent and stats.slots_held else ""
    return f"with KV {stats.slots_held}{of_them}, "


def _render_incident(incident: Incident, history: History | None) -> Text:
    line = Text().append("incident ", style="red").append(tame(incident.incident_id), style="bold red")
    line.append(f" {tame(incident.kind)}", style="bold red")
    if history is not None:
        line.append(f", {format_span(history.now_s - incident.time_s)} ago", style="red")
    if incident.over_s is not None:
        line.append(f", over {_tell_length(incident.over_s - incident.time_s)}", style="red")
    return line.append(f": {tame(incident.message)}", style="red")


def _tell_length(length_s: float) -> str:
    """As in `after 42 s`, `after 0.3 s` or `at once`."""
    if length_s < _AT_ONCE_S:
        return "at once"
    return f"after {length_s:.1f} s" if length_s < _EXACT_BELOW_S else f"after {format_span(length_s)}"
