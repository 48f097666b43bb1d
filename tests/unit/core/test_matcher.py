"""The longest usable part of a path, for pages, windows and states."""

from itertools import accumulate

import pytest

from engine.core.matcher import Matcher, steps_down
from engine.core.radix_node import Lock, Match, Node

PAGE_SIZE = 4


def chain(*lens: int, tombstones: tuple[int, ...] = (), states: tuple[int, ...] = ()) -> list[Node]:
    """Nodes of so many pages, one below the other. All have SWA pages but `tombstones`, and `states` have one."""
    parent = Node(0, b"", [], None, namespace="")
    nodes = []
    for at, length in enumerate(lens):
        swa = [] if at in tombstones else list(range(1, length + 1))
        parent = Node(at + 1, b"", list(range(length)), parent, swa=swa, state=100 + at if at in states else 0)
        nodes.append(parent)
    return nodes


def steps(nodes: list[Node]) -> list[Match]:
    """All of the path."""
    ends = accumulate(len(node.pages) for node in nodes)
    return [Match(node, len(node.pages), end) for node, end in zip(nodes, ends, strict=True)]


def usable(matcher: Matcher, path: list[Match]) -> int:
    """Pages of the longest usable part."""
    match = matcher.longest_usable(path)
    return 0 if match is None else match.num_pages


@pytest.mark.parametrize(
    ("window", "first_pages"), [(None, [0, 1, 2, 3]), (1, [0, 1, 2, 3]), (2, [0, 0, 1, 2]), (5, [0, 0, 1, 2])]
)
def test_window_from_when_asked_then_it_is_the_page_that_the_next_tokens_window_begins_in(
    window: int | None, first_pages: list[int]
) -> None:
    """The token at 4, with a window of 2, sees itself and 3, which is in page 0."""
    matcher = Matcher(PAGE_SIZE, window, has_states=False)
    assert [matcher.window_from(num_pages) for num_pages in range(4)] == first_pages


def test_window_from_when_a_window_is_a_token_more_then_it_begins_a_page_earlier() -> None:
    assert [Matcher(PAGE_SIZE, window, has_states=False).window_from(10) for window in (5, 6, 9, 10)] == [9, 8, 8, 7]


@pytest.mark.parametrize(
    ("window", "has_states", "is_plain"), [(None, False, True), (8, False, False), (None, True, False)]
)
def test_is_plain_when_there_is_a_window_or_a_state_then_it_is_not(
    window: int | None, *, has_states: bool, is_plain: bool
) -> None:
    assert Matcher(PAGE_SIZE, window, has_states).is_plain is is_plain


def test_longest_usable_when_pages_are_all_that_is_needed_then_the_whole_path_is() -> None:
    matcher = Matcher(PAGE_SIZE, None, has_states=False)
    assert usable(matcher, steps(chain(2, 3, tombstones=(0, 1)))) == 5
    assert matcher.longest_usable([]) is None


@pytest.mark.parametrize(
    ("window", "lens", "tombstones", "pages"),
    [
        # the token behind a whole number of pages sees one page of a window of 5, two of 6, three of 13, four of 14
        (5, (2, 2, 1), (), 5),
        (5, (2, 2, 1), (0,), 5),
        (5, (2, 2, 1), (0, 1), 5),
        (5, (2, 2, 1), (2,), 4),
        (5, (2, 2, 1), (0, 2), 4),
        (5, (2, 2, 1), (0, 1, 2), 0),
        (6, (2, 2, 1), (0, 1), 0),
        (6, (2, 2, 1), (1,), 2),
        (6, (2, 2, 2), (0, 1), 6),
        (1, (2, 2, 1), (1,), 5),
        (1, (2, 2, 1), (0, 1, 2), 5),
        (13, (2, 2, 1), (0,), 5),
        (13, (2, 2, 2), (0,), 6),
        (14, (2, 2, 1), (0,), 0),
        (14, (2, 2, 2), (0,), 6),
        (14, (2, 2, 2), (1,), 2),
        (100, (2, 2, 2), (1,), 2),
        (100, (2, 2, 2), (2,), 4),
        (100, (2, 2, 2), (0,), 0),
    ],
)
def test_longest_usable_when_some_nodes_lost_their_windows_then_the_last_end_with_a_whole_window_is(
    window: int, lens: tuple[int, ...], tombstones: tuple[int, ...], pages: int
) -> None:
    assert usable(Matcher(PAGE_SIZE, window, has_states=False), steps(chain(*lens, tombstones=tombstones))) == pages


@pytest.mark.parametrize(("used", "pages"), [(1, 3), (2, 4), (3, 5)])
def test_longest_usable_when_the_path_ends_inside_a_node_then_its_part_is_usable_with_windows(
    used: int, pages: int
) -> None:
    nodes = chain(2, 3, tombstones=(0,))
    path = [Match(nodes[0], 2, 2), Match(nodes[1], used, 2 + used)]
    assert usable(Matcher(PAGE_SIZE, 5, has_states=False), path) == pages


def test_longest_usable_when_too_little_of_a_live_node_is_used_then_its_window_reaches_into_a_tombstone() -> None:
    nodes = chain(2, 3, tombstones=(0,))
    matcher = Matcher(PAGE_SIZE, 6, has_states=False)
    assert [usable(matcher, [Match(nodes[0], 2, 2), Match(nodes[1], used, 2 + used)]) for used in (1, 2, 3)] == [
        0,
        4,
        5,
    ]


@pytest.mark.parametrize(("states", "pages"), [((), 0), ((0,), 2), ((1,), 4), ((0, 2), 5), ((0, 1), 4)])
def test_longest_usable_when_there_are_recurrent_layers_then_only_a_node_with_a_state_is_an_end(
    states: tuple[int, ...], pages: int
) -> None:
    assert usable(Matcher(PAGE_SIZE, None, has_states=True), steps(chain(2, 2, 1, states=states))) == pages


def test_longest_usable_when_the_path_ends_inside_a_node_then_the_state_at_its_end_is_of_no_use() -> None:
    nodes = chain(2, 3, states=(0, 1))
    matcher = Matcher(PAGE_SIZE, None, has_states=True)
    assert usable(matcher, [Match(nodes[0], 2, 2), Match(nodes[1], 2, 4)]) == 2
    assert usable(matcher, [Match(nodes[0], 1, 1)]) == 0


@pytest.mark.parametrize(
    ("states", "tombstones", "pages"),
    [((0, 1, 2), (), 6), ((0, 1), (2,), 4), ((2,), (1,), 6), ((1, 2), (2,), 4), ((0, 2), (2,), 2), ((1,), (1,), 0)],
)
def test_longest_usable_when_there_are_both_then_an_end_needs_a_window_and_a_state(
    states: tuple[int, ...], tombstones: tuple[int, ...], pages: int
) -> None:
    path = steps(chain(2, 2, 2, states=states, tombstones=tombstones))
    assert usable(Matcher(PAGE_SIZE, 5, has_states=True), path) == pages


@pytest.mark.parametrize(
    ("num_pages", "told"),
    [(0, []), (1, [(1, 1, 1)]), (2, [(1, 2, 2)]), (4, [(1, 2, 2), (2, 2, 4)]), (9, [(1, 2, 2), (2, 3, 5)])],
)
def test_steps_down_when_so_many_pages_are_asked_for_then_nodes_are_told_from_the_begin_with_how_far(
    num_pages: int, told: list[tuple[int, int, int]]
) -> None:
    lock = Lock(chain(2, 3)[-1], 5)
    assert [(step.node.number, step.used_pages, step.num_pages) for step in steps_down(lock, num_pages)] == told
