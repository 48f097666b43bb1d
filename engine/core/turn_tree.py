"""The tree of an ordinary session's finished turns: paths of token ids, and what is left of them after a cut. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.core.ids import Rid, TurnId, count_ids, slice_ids


@dataclass(frozen=True, slots=True, eq=False)
class TurnNode:
    """A finished turn: its own ids, input and output, behind the first `parent_len` ids of its parent's path.

        parent's path:  | kept ...... parent_len | left out |
        this path:      | kept ...... parent_len | own input ..... input_len | own output |

    Immutable: what is cut is made anew, and shares its ids.
    """

    turn_id: TurnId
    parent: "TurnNode | None"
    parent_len: int
    input_len: int
    """Tokens of the path without this turn's output."""
    own_ids: bytes

    @property
    def path_len(self) -> int:
        """Tokens from the root to this turn's end."""
        return self.parent_len + count_ids(self.own_ids)

    def path_ids(self, length: int | None = None) -> bytes:
        """The first `length` ids from the root to this turn's end, or all of them: O(length)."""
        left = self.path_len if length is None else length
        runs: list[bytes] = []
        node: TurnNode | None = self
        while node is not None:
            if left > node.parent_len:
                runs.append(slice_ids(node.own_ids, 0, left - node.parent_len))
                left = node.parent_len
            node = node.parent
        return b"".join(reversed(runs))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn hangs in the tree: behind the first `parent_len` ids of `parent`'s path."""

    parent: TurnId | None = None
    parent_len: int = 0


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """A turn that runs or waits. `prompt`: in an ordinary session, the ids of its path without output; else empty."""

    rid: Rid
    place: Place
    prompt: bytes


Nodes = Mapping[TurnId, TurnNode]
"""By name, parents before their children."""


def path_nodes(node: TurnNode) -> dict[TurnId, TurnNode]:
    """The node and all above it."""
    path: list[TurnNode] = []
    step: TurnNode | None = node
    while step is not None:
        path.append(step)
        step = step.parent
    return {step.turn_id: step for step in reversed(path)}


def descendants(nodes: Nodes, turn_id: TurnId) -> list[TurnId]:
    """Finished turns below `turn_id`, which may itself still run: O(nodes)."""
    below: set[TurnId] = {turn_id}
    for name, node in nodes.items():
        if node.parent is not None and node.parent.turn_id in below:
            below.add(name)
    below.remove(turn_id)
    return [name for name in nodes if name in below]


def cut_nodes(nodes: Nodes, length: int) -> dict[TurnId, TurnNode]:
    """What is left when no path may be longer than `length`: O(nodes).

    Turns that begin at or behind it are gone, those that run past it end there. A child may keep less of its parent
    than the parent keeps of its own (an offset): it outlives the parent then, and hangs where the parent hung.
    """
    left: dict[TurnId, TurnNode] = {}
    homes: dict[TurnId, TurnNode | None] = {}  # name → what is left of that node, or else of the nearest one above it
    for name, node in nodes.items():
        above = homes[node.parent.turn_id] if node.parent is not None else None
        if node.parent_len >= length:
            homes[name] = above
            continue
        own_ids = slice_ids(node.own_ids, 0, length - node.parent_len)
        homes[name] = left[name] = TurnNode(name, above, node.parent_len, min(node.input_len, length), own_ids)
    return left


def longest(nodes: Iterable[TurnNode]) -> TurnNode | None:
    """The node with the longest path, the first of several; None of none."""
    return max(nodes, key=lambda node: node.path_len, default=None)
