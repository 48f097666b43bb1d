"""Compiles a turn: a session and a command become the input of one request, and what it takes the place of. Pure."""

from dataclasses import dataclass

from engine.core.commands import OnAbort, Submit, TurnMode
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import Rid, TurnId, count_ids, slice_ids
from engine.core.sessions import Session
from engine.core.turn_tree import Place, TurnNode, descendants


@dataclass(frozen=True, slots=True)
class Point:
    """What a turn of an ordinary session refers to: where it goes on, and how. As the fields of `Submit`."""

    parent: TurnId | None = None
    mode: TurnMode = TurnMode.APPEND
    offset: int | None = None
    drop_previous_output: bool = False

    @classmethod
    def of(cls, command: Submit) -> "Point":
        return cls(command.parent, command.mode, command.offset, command.drop_previous_output)


ROOT = Place()


@dataclass(frozen=True, slots=True)
class Base:
    """What a turn follows: the ids before its own, and where it will hang."""

    ids: bytes = b""
    place: Place = ROOT


@dataclass(frozen=True, slots=True)
class CompiledTurn:
    """`ids`: base and new ids. `base_len`: how many of them are history."""

    ids: bytes
    base_len: int
    place: Place = ROOT
    aborts: tuple[Rid, ...] = ()
    """Live turns that this one takes the place of."""
    forgets: tuple[TurnId, ...] = ()
    """Finished ones."""


def find_base(session: Session, point: Point) -> Base:
    """The base of a turn: by mode and parent, then by `drop_previous_output`, then by `offset`.

        append to p    p.input + p.output      p must be finished
        replace p      p.input + p.output      p.input alone when p still runs: its output was never committed
        no parent      nothing; in a streaming session its whole history

    Refused: STREAMING_APPENDS_ONLY, PARENT_UNKNOWN, PARENT_UNFINISHED, PARENT_REQUIRED, OFFSET_INVALID.
    """
    if session.streaming:
        _check_streaming(session, point)
        return Base(session.history)
    base = _parent_base(session, point)
    if point.offset is None:
        return base
    length = count_ids(base.ids)
    if not 0 <= point.offset <= length:
        what = "the length of what the turn follows" if point.parent is not None else "since it names no parent"
        message = f"offset must be from 0 to {length}, {what}, not {point.offset}"
        raise Refusal(RefusalReason.OFFSET_INVALID, message, field="offset", value=point.offset, limit=length)
    kept = slice_ids(base.ids, 0, point.offset)
    return Base(kept, Place(base.place.parent, min(base.place.parent_len, point.offset)))


def _parent_base(session: Session, point: Point) -> Base:
    if point.parent is None:
        if point.drop_previous_output:
            message = "drop_previous_output needs a parent, whose output is to be dropped"
            raise Refusal(RefusalReason.PARENT_REQUIRED, message, field="drop_previous_output")
        return Base()
    running = session.live.get(point.parent)
    if running is not None:
        if point.mode is TurnMode.APPEND:
            message = f"turn {point.parent!r} is not finished yet"
            raise _refused_parent(RefusalReason.PARENT_UNFINISHED, message, point.parent)
        return Base(running.prompt, running.place)
    node = session.nodes.get(point.parent)
    if node is None:
        message = f"session {session.session_id!r} has no finished turn {point.parent!r}"
        raise _refused_parent(RefusalReason.PARENT_UNKNOWN, message, point.parent)
    length = node.input_len if point.drop_previous_output else node.path_len
    return Base(node.path_ids(length), Place(node.turn_id, length))


def _refused_parent(reason: RefusalReason, message: str, parent: TurnId) -> Refusal:
    return Refusal(reason, message, field="parent_turn_id", value=parent)


def _check_streaming(session: Session, point: Point) -> None:
    """What a client was told can't be rewritten."""
    asked = {
        "parent_turn_id": point.parent is not None and session.ends.get(point.parent) != session.history_len,
        "mode": point.mode is not TurnMode.APPEND,
        "offset": point.offset is not None and (point.offset != 0 or session.history_len > 0),
        "drop_previous_output": point.drop_previous_output,
    }
    field = _first(asked)
    if field is not None:
        message = f"streaming session {session.session_id!r} only appends to its last turn: leave {field} out"
        value = point.parent if field == "parent_turn_id" else None
        raise Refusal(RefusalReason.STREAMING_APPENDS_ONLY, message, field=field, value=value)


def _first(asked: dict[str, bool]) -> str | None:
    """The first field that was asked for, of those that can't be."""
    return next((name for name, is_asked in asked.items() if is_asked), None)


def compile_turn(session: Session | None, command: Submit) -> CompiledTurn:
    """The input of a turn, and what it takes the place of. Refused as `find_base` is, and SESSION_REQUIRED."""
    if session is None:
        _check_stateless(command)
        return CompiledTurn(command.input_ids, 0)
    point = Point.of(command)
    base = find_base(session, point)
    compiled = CompiledTurn(base.ids + command.input_ids, count_ids(base.ids), base.place)
    return compiled if point.mode is TurnMode.APPEND else _replacing(session, point.parent, compiled)


def _check_stateless(command: Submit) -> None:
    asked = {
        "parent_turn_id": command.parent is not None,
        "mode": command.mode is not TurnMode.APPEND,
        "offset": command.offset is not None,
        "drop_previous_output": command.drop_previous_output,
        "on_abort": command.on_abort is OnAbort.KEEP,
    }
    field = _first(asked)
    if field is not None:
        raise Refusal(RefusalReason.SESSION_REQUIRED, f"{field} needs a session", field=field)


def _replacing(session: Session, parent: TurnId | None, compiled: CompiledTurn) -> CompiledTurn:
    """With all that came after `parent`, or everything without one. A parent that runs goes too."""
    forgets = list(session.nodes) if parent is None else descendants(session.nodes, parent)
    gone = {*forgets, *([parent] if parent is not None else [])}
    aborts = [
        live.rid for name, live in session.live.items() if parent is None or name == parent or live.place.parent in gone
    ]
    return CompiledTurn(compiled.ids, compiled.base_len, compiled.place, tuple(aborts), tuple(forgets))


def find_turn(session: Session, turn_id: TurnId) -> TurnNode | int:
    """A finished turn: its node, or in a streaming session the history's length at its end. Refused: PARENT_UNKNOWN."""
    found = session.ends.get(turn_id) if session.streaming else session.nodes.get(turn_id)
    if found is None:
        message = f"session {session.session_id!r} has no finished turn {turn_id!r}"
        raise Refusal(RefusalReason.PARENT_UNKNOWN, message, field="at_turn_id", value=turn_id)
    return found
