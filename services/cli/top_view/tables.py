"""Turns and sessions: what fits, the largest first, and how many more there are."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from services.cli.held import USUAL_KINDS, held_counts, held_heads
from services.cli.top_view.inert import crop, fit, tame
from services.cli.top_view.numbers import format_count
from services.cli.top_view.owners import BLUE, GREEN, ORANGE
from services.cli.top_view.reading import Sort
from services.client import SessionInfo, TurnInfo

HEAD_STYLE = "bold underline"
_NAME_MIN, _NAME_MAX = 8, 40
_STYLES = {"running": ORANGE, "waiting": "yellow", "held": BLUE, "lent": ORANGE, "demoted": GREEN, "none": "dim"}
"""Of phases of turns, and of states of KV."""
_PHASES = ("running", "retracting", "committing", "rolling_back", "waiting")
"""In the order in which they are shown; the others come last."""


@dataclass(frozen=True, slots=True)
class Column:
    """`is_name`: it gives way when there is not enough room. `is_number`: it stands at the right."""

    head: str
    is_name: bool = False
    is_number: bool = False


_TURN_COLUMNS = (
    Column("no", is_number=True),
    Column("turn", is_name=True),
    Column("session", is_name=True),
    Column("phase"),
    Column("prompt", is_number=True),
    Column("generated", is_number=True),
    Column("kv tokens", is_number=True),
)
_IN_FLIGHT = Column("in flight", is_number=True)
_SESSION_COLUMNS = (
    Column("session", is_name=True),
    Column("kind"),
    Column("tokens", is_number=True),
    Column("kv"),
    Column("kv tokens", is_number=True),
)
_RUNNING_TURNS = Column("running turns", is_name=True)


def sort_turns(turns: Sequence[TurnInfo], sort: Sort) -> list[TurnInfo]:
    """Running ones first."""

    def key(turn: TurnInfo) -> tuple[int, int, str, int]:
        place = _PHASES.index(turn.phase) if turn.phase in _PHASES else len(_PHASES)
        size = {"pages": turn.kv_pages, "tokens": turn.kv_tokens, "name": 0}[sort]
        return place, -size, turn.turn_id if sort == "name" else "", turn.number

    return sorted(turns, key=key)


def sort_sessions(sessions: Sequence[SessionInfo], sort: Sort) -> list[SessionInfo]:
    def key(session: SessionInfo) -> tuple[int, str]:
        size = {"pages": session.kv_pages, "tokens": session.kv_tokens, "name": 0}[sort]
        return -size, session.session_id

    return sorted(sessions, key=key)


def render_turns(
    turns: Sequence[TurnInfo], sort: Sort, width: int, height: int, kinds: Sequence[str] = USUAL_KINDS
) -> list[Text]:
    """At most `height` lines, the head included. `kinds`: those of the server's pools."""
    if not turns:
        return [Text("no turn runs or waits", style="dim")][:height]
    rows = [_turn_cells(turn, kinds) for turn in sort_turns(turns, sort)[:height]]
    columns = (*_TURN_COLUMNS, *_held_columns(kinds), _IN_FLIGHT)
    return _render_table(columns, rows, len(turns), "turns", width, height)


def render_sessions(
    sessions: Sequence[SessionInfo], sort: Sort, width: int, height: int, kinds: Sequence[str] = USUAL_KINDS
) -> list[Text]:
    """As `render_turns`."""
    if not sessions:
        return [Text("no session is open", style="dim")][:height]
    rows = [_session_cells(session, kinds) for session in sort_sessions(sessions, sort)[:height]]
    columns = (*_SESSION_COLUMNS, *_held_columns(kinds), _RUNNING_TURNS)
    return _render_table(columns, rows, len(sessions), "sessions", width, height)


def share_height(num_turns: int, num_sessions: int, height: int) -> tuple[int, int]:
    """Lines for turns and for sessions, heads included: half each, and what one does not need is the other's."""
    turns_wanted, sessions_wanted = max(num_turns, 0) + 1, max(num_sessions, 0) + 1
    if num_turns == 0:
        turns_wanted = 1
    turns = min(turns_wanted, max(height // 2, height - sessions_wanted))
    return turns, min(sessions_wanted, height - turns)


def _held_columns(kinds: Sequence[str]) -> list[Column]:
    return [Column(head, is_number=True) for head in held_heads(kinds)]


def _turn_cells(turn: TurnInfo, kinds: Sequence[str]) -> tuple[str, ...]:
    lengths = (turn.context_tokens, turn.completion_tokens, turn.kv_tokens)
    numbers = (*lengths, *held_counts(turn, kinds), turn.steps_in_flight)
    names = (tame(turn.turn_id), tame(turn.session_id) if turn.session_id is not None else "-", tame(turn.phase))
    return (str(turn.number), *names, *map(format_count, numbers))


def _session_cells(session: SessionInfo, kinds: Sequence[str]) -> tuple[str, ...]:
    return (
        tame(session.session_id),
        "streaming" if session.streaming else "ordinary",
        format_count(session.session_len) if session.streaming else "-",
        tame(session.kv_state),
        format_count(session.kv_tokens),
        *map(format_count, held_counts(session, kinds)),
        _name_turns(session.live_turn_ids),
    )


def _name_turns(turn_ids: Sequence[str]) -> str:
    """The first one, and how many more."""
    if not turn_ids:
        return "-"
    return tame(turn_ids[0]) if len(turn_ids) == 1 else f"{tame(turn_ids[0])} +{len(turn_ids) - 1}"


def _render_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], total: int, what: str, width: int, height: int
) -> list[Text]:
    if height < 1:
        return []
    shown = rows[: height - 1] if total <= height - 1 else rows[: max(height - 2, 0)]
    widths = _column_widths(columns, shown, width)
    lines = [Text(_join(columns, [column.head for column in columns], widths).ljust(width), style=HEAD_STYLE)]
    lines += [_render_row(columns, row, widths) for row in shown]
    if len(shown) < total:
        rest = total - len(shown)
        lines.append(
            Text(f"and {format_count(rest)} more {what}" if shown else f"{format_count(rest)} {what}", style="dim")
        )
    return [crop(line, width) for line in lines[:height]]


def _column_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """As wide as what is in them; names share what is left of the line, and no more than they need."""
    widths = [
        max(cell_len(text) for text in (column.head, *(row[idx] for row in rows))) for idx, column in enumerate(columns)
    ]
    names = [idx for idx, column in enumerate(columns) if column.is_name]
    for idx in names:
        widths[idx] = min(widths[idx], _NAME_MAX)
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0 and any(widths[idx] > _NAME_MIN for idx in names):
        widths[max(names, key=lambda idx: widths[idx])] -= 1
        excess -= 1
    return widths


def _join(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_pad(column, cell, width) for column, cell, width in zip(columns, cells, widths, strict=True))


def _pad(column: Column, cell: str, width: int) -> str:
    text = fit(cell, width)
    return text.rjust(width) if column.is_number else set_cell_size(text, width)


def _render_row(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> Text:
    cells = [
        Text(_pad(column, cell, width), style="" if column.is_name else _STYLES.get(cell, ""))
        for column, cell, width in zip(columns, row, widths, strict=True)
    ]
    return Text("  ").join(cells)
