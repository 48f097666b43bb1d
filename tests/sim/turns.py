"""A second telling of the tree of turns: what a turn follows, what it takes the place of, what a cut leaves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from engine.core.commands import Submit, TurnMode
from engine.core.ids import Rid, TurnId
from tests.sim.ops import TruncateOp
from tests.sim.records import NodeRecord, SessionRecord, TurnRecord


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a turn that is accepted does to its session. `parent`: where it hangs."""

    base: list[int]
    parent: TurnId | None = None
    begin: int = 0
    """Where it begins: so many of the first ids are those of the turn that it hangs under."""
    whole_base_len: int = 0
    """Tokens of the base before `offset` cut it."""
    replaced: tuple[TurnId, ...] = ()
    """Live turns that end."""
    forgotten: frozenset[TurnId] = frozenset()
    """Finished turns that go."""


def cut_len(operation: TruncateOp, session: SessionRecord | None) -> int:
    """Tokens that are to stay, of a session that may not be there."""
    length = operation.length.of(session.history_len if session is not None else 0)
    if session is None or not operation.is_at_end:
        return length
    ends = (len(node.path) for node in session.nodes.values())
    return max((end for end in ends if end <= length), default=length)


def compile_turn(command: Submit, session: SessionRecord | None, turns: Mapping[Rid, TurnRecord]) -> Compiled:
    """For a command that is not refused for its session or parent; with those, something that means nothing."""
    if session is None:
        return Compiled([])
    if session.streaming:
        return Compiled(session.history, begin=len(session.history), whole_base_len=len(session.history))
    base, parent, begin = _follow(command, session, turns)
    kept = base if command.offset is None else base[: max(0, command.offset)]
    begin = min(begin, len(kept))
    if command.mode is TurnMode.APPEND:
        return Compiled(kept, parent, begin, len(base))
    gone = _replaced(command.parent, session, turns)
    replaced = tuple(turn for turn in session.live if turn in gone)
    forgotten = frozenset(turn for turn in session.nodes if turn in gone)
    return Compiled(kept, parent, begin, len(base), replaced, forgotten)


def _follow(
    command: Submit, session: SessionRecord, turns: Mapping[Rid, TurnRecord]
) -> tuple[list[int], TurnId | None, int]:
    """The ids that the turn follows, the node that it hangs under, and how many of the ids are that node's."""
    name = command.parent
    if name is None:
        return [], None, 0
    if name in session.live:
        running = turns[session.live[name]]
        return running.prompt, running.parent, running.begin
    node = session.nodes.get(name)
    if node is None:
        return [], None, 0
    base = node.path[: node.input_len] if command.drop_previous_output else node.path
    return base, name, len(base)


def _replaced(parent: TurnId | None, session: SessionRecord, turns: Mapping[Rid, TurnRecord]) -> set[TurnId]:
    """All of the session without a parent; else what comes after the parent, and the parent too while it runs."""
    above = {name: node.parent for name, node in session.nodes.items()}
    above |= {name: turns[rid].parent for name, rid in session.live.items()}
    if parent is None:
        return set(above)
    gone = {parent} if parent in session.live else set()
    return gone | {name for name in above if parent in _ancestors(name, above)}


def _ancestors(name: TurnId, above: Mapping[TurnId, TurnId | None]) -> list[TurnId]:
    found: list[TurnId] = []
    upper = above.get(name)
    while upper is not None:
        found.append(upper)
        upper = above.get(upper)
    return found


def resolve(name: TurnId | None, session: SessionRecord | None) -> TurnId | None:
    """What `^1` and `~0` stand for now, see `TurnOp`; other names stand for themselves."""
    if name is None or name[0] not in "^~":
        return name
    if session is None:
        return None
    names = list(session.nodes if name[0] == "^" else session.live)
    return names[-1 - min(int(name[1:]), len(names) - 1)] if names else None


def path_to(nodes: Mapping[TurnId, NodeRecord], name: TurnId) -> dict[TurnId, NodeRecord]:
    """A turn and those that it hangs under."""
    above = {each: node.parent for each, node in nodes.items()}
    wanted = {name, *_ancestors(name, above)}
    return {each: node for each, node in nodes.items() if each in wanted}


def cut(nodes: Mapping[TurnId, NodeRecord], length: int) -> dict[TurnId, NodeRecord]:
    """What is left of a tree: no path is longer, and no turn begins at or behind `length`."""
    left = {name for name, node in nodes.items() if node.begin < length}
    above = {name: node.parent for name, node in nodes.items()}
    return {
        name: replace(
            node,
            path=node.path[:length],
            input_len=min(node.input_len, length),
            parent=next((upper for upper in _ancestors(name, above) if upper in left), None),
        )
        for name, node in nodes.items()
        if name in left
    }


def changed_by_cut(session: SessionRecord, length: int) -> frozenset[TurnId]:
    """Turns whose record is void after a cut."""
    return frozenset(name for name, node in session.nodes.items() if len(node.path) > length)


def kept_names(nodes: Mapping[TurnId, NodeRecord], length: int) -> dict[TurnId, NodeRecord]:
    """Turns of a streaming session that end at or before `length`."""
    return {name: node for name, node in nodes.items() if len(node.path) <= length}


def count_tokens(sessions: Iterable[SessionRecord]) -> tuple[int, int]:
    """Tokens of all histories together: at least, and at most, by how shared beginnings are counted."""
    least = most = 0
    for session in sessions:
        if session.streaming:
            least += len(session.history)
            most += len(session.history)
            continue
        most += sum(len(node.path) for node in session.nodes.values())
        least += sum(len(node.path) - node.begin for node in session.nodes.values())
    return least, most
