"""The tree of finished turns: paths, what hangs below what, and what a cut leaves."""

import pytest

from engine.core.ids import TurnId, pack_ids, unpack_ids
from engine.core.turn_tree import Nodes, TurnNode, cut_nodes, descendants, longest, path_nodes


def grow(nodes: dict[TurnId, TurnNode], name: str, own: list[int], parent: str | None = None, kept: int = 0) -> None:
    """A turn with `own` ids, the last of them output, behind the first `kept` ids of its parent's path."""
    above = nodes[TurnId(parent)] if parent is not None else None
    nodes[TurnId(name)] = TurnNode(TurnId(name), above, kept, kept + len(own) - 1, pack_ids(own))


def make_tree() -> dict[TurnId, TurnNode]:
    """Three deep, with branches that keep all, a part and nothing of what they hang from, and a second root.

    a        0 1 2 3
    ├ b      0 1 2 3 4 5 6
    │ ├ c    0 1 2 3 4 5 6 7 8
    │ └ d    0 1 30              keeps less of b than a has
    │   └ e  0 1 30 31
    └ f      50 51               keeps nothing of a
    g        90
    """
    nodes: dict[TurnId, TurnNode] = {}
    grow(nodes, "a", [0, 1, 2, 3])
    grow(nodes, "b", [4, 5, 6], "a", 4)
    grow(nodes, "c", [7, 8], "b", 7)
    grow(nodes, "d", [30], "b", 2)
    grow(nodes, "e", [31], "d", 3)
    grow(nodes, "f", [50, 51], "a", 0)
    grow(nodes, "g", [90])
    return nodes


PATHS: dict[str, list[int]] = {
    "a": [0, 1, 2, 3],
    "b": [0, 1, 2, 3, 4, 5, 6],
    "c": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "d": [0, 1, 30],
    "e": [0, 1, 30, 31],
    "f": [50, 51],
    "g": [90],
}
STARTS = {"a": 0, "b": 4, "c": 7, "d": 2, "e": 3, "f": 0, "g": 0}
"""Where each turn's own ids begin."""


def paths(nodes: Nodes) -> dict[str, list[int]]:
    return {name: list(unpack_ids(node.path_ids())) for name, node in nodes.items()}


def test_path_when_a_turn_keeps_less_than_its_parent_then_the_ids_left_out_are_not_on_it() -> None:
    nodes = make_tree()
    assert paths(nodes) == PATHS
    assert {name: node.path_len for name, node in nodes.items()} == {name: len(ids) for name, ids in PATHS.items()}


@pytest.mark.parametrize("name", PATHS)
def test_path_when_only_its_first_ids_are_asked_for_then_it_gives_as_many(name: str) -> None:
    node = make_tree()[TurnId(name)]
    for length in range(len(PATHS[name]) + 1):
        assert list(unpack_ids(node.path_ids(length))) == PATHS[name][:length]


@pytest.mark.parametrize(
    ("name", "above"), [("a", "a"), ("c", "abc"), ("d", "abd"), ("e", "abde"), ("f", "af"), ("g", "g")]
)
def test_path_nodes_when_asked_then_they_are_the_turn_and_all_above_it_parents_first(name: str, above: str) -> None:
    assert list(path_nodes(make_tree()[TurnId(name)])) == list(above)


@pytest.mark.parametrize(
    ("name", "below"), [("a", "bcdef"), ("b", "cde"), ("c", ""), ("d", "e"), ("g", ""), ("runs", "")]
)
def test_descendants_when_asked_then_they_are_all_below_and_not_the_turn_itself(name: str, below: str) -> None:
    assert descendants(make_tree(), TurnId(name)) == list(below)


@pytest.mark.parametrize("length", range(11))
def test_cut_when_at_any_length_then_each_turn_that_begins_before_it_is_left_and_ends_there(length: int) -> None:
    left = cut_nodes(make_tree(), length)
    assert paths(left) == {name: ids[:length] for name, ids in PATHS.items() if STARTS[name] < length}
    assert list(left) == [name for name in PATHS if STARTS[name] < length], "parents before their children"
    for name, node in left.items():
        assert node.parent is None or node.parent is left[node.parent.turn_id], f"{name} hangs from a turn that is gone"
        assert node.parent_len <= node.input_len <= node.path_len


def test_cut_when_a_child_with_an_offset_outlives_its_parent_then_it_hangs_where_the_parent_hung() -> None:
    nodes = make_tree()
    left = cut_nodes(nodes, 3)
    assert TurnId("b") not in left
    assert left[TurnId("d")].parent is left[TurnId("a")]
    assert TurnId("e") not in left
    assert paths(nodes) == PATHS, "forks share these nodes: a cut leaves them as they are"


def test_cut_when_it_is_in_a_turns_output_then_its_input_is_whole_and_behind_that_it_ends_there_too() -> None:
    nodes: dict[TurnId, TurnNode] = {}
    nodes[TurnId("a")] = TurnNode(TurnId("a"), None, 0, 3, pack_ids(range(6)))
    assert [cut_nodes(nodes, length)[TurnId("a")].input_len for length in (2, 3, 5)] == [2, 3, 3]


def test_cut_when_twice_then_it_is_as_once_at_the_lower_length() -> None:
    for first in range(1, 10):
        for second in range(1, first + 1):
            assert paths(cut_nodes(cut_nodes(make_tree(), first), second)) == paths(cut_nodes(make_tree(), second))


def test_longest_when_several_are_then_it_is_the_first_and_none_of_none() -> None:
    nodes = make_tree()
    assert longest(nodes.values()) is nodes[TurnId("c")]
    assert (
        longest([nodes[TurnId("d")], nodes[TurnId("f")], nodes[TurnId("a")], nodes[TurnId("e")]]) is nodes[TurnId("a")]
    )
    assert longest(()) is None
