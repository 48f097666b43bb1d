"""Compiling a turn: the table of modes, parents, offsets and dropped outputs, by hand and against a naive model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from engine.core.commands import OnAbort, Open, Submit, TurnMode
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import EventLog
from engine.core.ids import Rid, SessionId, TurnId, pack_ids, unpack_ids
from engine.core.sessions import Session, SessionController
from engine.core.turn_tree import LiveTurn, Place
from engine.core.turns import Point, compile_turn, find_base, find_turn

S = SessionId("s")
CONFIG = CoreConfig(page_size=4, pool_pages=9, num_rows=4, context_len=64, vocab_size=100)
APPEND, REPLACE = TurnMode.APPEND, TurnMode.REPLACE


class Tree:
    """An ordinary session that is grown by hand.

    a      in 0 1, out 2               b  in 3 4, out 5: child of a      c  in 6, out 7: child of b
    run    in 10 11: runs below a      top  in 40 41: runs at the root   late  in 60: runs below b
    """

    PATHS = {"a": [0, 1, 2], "b": [0, 1, 2, 3, 4, 5], "c": [0, 1, 2, 3, 4, 5, 6, 7]}
    INPUT_LENS = {"a": 2, "b": 5, "c": 7}
    PROMPTS = {"run": [0, 1, 2, 10, 11], "top": [40, 41], "late": [0, 1, 2, 3, 4, 5, 60]}
    RIDS = {"run": 101, "top": 102, "late": 103}
    BELOW_FINISHED = {"a": "bc", "b": "c", "c": ""}
    BELOW_LIVE = {"a": ("run", "late"), "b": ("late",), "c": ()}

    def __init__(self) -> None:
        self.controller = SessionController(CONFIG, EventLog())
        self.session = self.controller.open(Open(S, streaming=False), 0.0)
        self._rids = 0
        self.finish("a", None, [0, 1], [2])
        self.finish("b", "a", [3, 4], [5])
        self.finish("c", "b", [6], [7])
        self.begin("run", "a", [10, 11], self.RIDS["run"])
        self.begin("top", None, [40, 41], self.RIDS["top"])
        self.begin("late", "b", [60], self.RIDS["late"])

    def begin(self, name: str, parent: str | None, ids: Sequence[int], rid: int) -> bytes:
        compiled = compile_turn(self.session, submit(name, ids, parent))
        self.controller.begin_turn(self.session, TurnId(name), LiveTurn(Rid(rid), compiled.place, compiled.ids))
        return compiled.ids

    def finish(self, name: str, parent: str | None, ids: Sequence[int], output: Sequence[int]) -> None:
        self._rids += 1
        prompt = self.begin(name, parent, ids, self._rids)
        self.controller.commit_turn(self.session, TurnId(name), prompt + pack_ids(output))
        self.controller.end_turn(self.session, TurnId(name), Rid(self._rids), 0.0)


def submit(
    name: str,
    ids: Sequence[int],
    parent: str | None = None,
    mode: TurnMode = APPEND,
    offset: int | None = None,
    drop: bool = False,
) -> Submit:
    parent_id = TurnId(parent) if parent is not None else None
    return Submit(
        Rid(9), TurnId(name), pack_ids(ids), S, parent_id, mode=mode, offset=offset, drop_previous_output=drop
    )


def expected_base(mode: TurnMode, parent: str | None, drop: bool) -> list[int] | RefusalReason:
    """The table of the design, word by word, before the offset."""
    if parent is None:
        return RefusalReason.PARENT_REQUIRED if drop else []
    if parent in Tree.PROMPTS:
        return RefusalReason.PARENT_UNFINISHED if mode is APPEND else Tree.PROMPTS[parent]
    if parent not in Tree.PATHS:
        return RefusalReason.PARENT_UNKNOWN
    return Tree.PATHS[parent][: Tree.INPUT_LENS[parent]] if drop else Tree.PATHS[parent]


PARENTS = (None, "a", "b", "c", "run", "top", "late", "nobody")
OFFSETS = (None, -1, 0, 1, 2, 3, 5, 6, 8, 9)
TABLE = list(product((APPEND, REPLACE), PARENTS, OFFSETS, (False, True)))


@pytest.mark.parametrize(("mode", "parent", "offset", "drop"), TABLE)
def test_base_when_compiled_then_it_is_what_the_table_says(
    mode: TurnMode, parent: str | None, offset: int | None, drop: bool
) -> None:
    session = Tree().session
    command = submit("new", [90, 91], parent, mode, offset, drop)
    base = expected_base(mode, parent, drop)
    if isinstance(base, list) and offset is not None and not 0 <= offset <= len(base):
        with pytest.raises(Refusal) as caught:
            compile_turn(session, command)
        refusal = caught.value
        assert (refusal.reason, refusal.field) == (RefusalReason.OFFSET_INVALID, "offset")
        assert (refusal.value, refusal.limit) == (offset, len(base))
    elif isinstance(base, list):
        kept = base[:offset]
        compiled = compile_turn(session, command)
        assert list(unpack_ids(compiled.ids)) == [*kept, 90, 91]
        assert compiled.base_len == len(kept)
        assert find_base(session, Point.of(command)).ids == pack_ids(kept)
    else:
        with pytest.raises(Refusal) as caught:
            compile_turn(session, command)
        assert caught.value.reason is base


@pytest.mark.parametrize(
    ("parent", "offset", "drop", "place"),
    [
        (None, None, False, Place()),
        ("b", None, False, Place(TurnId("b"), 6)),
        ("b", None, True, Place(TurnId("b"), 5)),
        ("b", 6, False, Place(TurnId("b"), 6)),
        ("b", 2, False, Place(TurnId("b"), 2)),
        ("b", 2, True, Place(TurnId("b"), 2)),
        ("b", 0, False, Place(TurnId("b"), 0)),
    ],
)
@pytest.mark.parametrize("mode", [APPEND, REPLACE])
def test_place_when_the_parent_is_finished_then_the_turn_hangs_below_it_behind_what_it_keeps(
    mode: TurnMode, parent: str | None, offset: int | None, drop: bool, place: Place
) -> None:
    assert compile_turn(Tree().session, submit("new", [90], parent, mode, offset, drop)).place == place


@pytest.mark.parametrize(
    ("parent", "offset", "place"),
    [
        ("run", None, Place(TurnId("a"), 3)),
        ("run", 4, Place(TurnId("a"), 3)),
        ("run", 3, Place(TurnId("a"), 3)),
        ("run", 1, Place(TurnId("a"), 1)),
        ("top", None, Place()),
        ("late", None, Place(TurnId("b"), 6)),
    ],
)
def test_place_when_a_turn_that_runs_is_replaced_then_it_hangs_where_that_one_hung(
    parent: str, offset: int | None, place: Place
) -> None:
    assert compile_turn(Tree().session, submit("new", [90], parent, REPLACE, offset)).place == place


@pytest.mark.parametrize("parent", ["a", "b", "c", "run", "top", "late"])
def test_replace_when_it_names_a_turn_then_all_below_it_goes_and_the_turn_itself_only_if_it_runs(parent: str) -> None:
    compiled = compile_turn(Tree().session, submit("new", [90], parent, REPLACE))
    aborts = (parent,) if parent in Tree.PROMPTS else Tree.BELOW_LIVE[parent]
    assert compiled.aborts == tuple(Tree.RIDS[name] for name in aborts)
    assert compiled.forgets == tuple(Tree.BELOW_FINISHED.get(parent, ""))


def test_replace_when_it_names_no_turn_then_everything_goes() -> None:
    compiled = compile_turn(Tree().session, submit("new", [90], None, REPLACE))
    assert compiled.aborts == tuple(Tree.RIDS.values())
    assert compiled.forgets == ("a", "b", "c")


@pytest.mark.parametrize(("parent", "offset", "drop"), [(None, None, False), ("a", None, False), ("c", 2, True)])
def test_append_when_compiled_then_nothing_goes(parent: str | None, offset: int | None, drop: bool) -> None:
    compiled = compile_turn(Tree().session, submit("new", [90], parent, APPEND, offset, drop))
    assert (compiled.aborts, compiled.forgets) == ((), ())


def test_replace_when_the_replacing_turn_is_committed_then_its_path_is_what_it_was_compiled_to() -> None:
    tree = Tree()
    for name, parent, offset in (("x", "run", None), ("y", "top", None), ("z", "late", 4)):
        compiled = compile_turn(tree.session, submit(name, [90, 91], parent, REPLACE, offset))
        tree.controller.begin_turn(tree.session, TurnId(name), LiveTurn(Rid(50), compiled.place, compiled.ids))
        tree.controller.commit_turn(tree.session, TurnId(name), compiled.ids + pack_ids([92]))
        tree.controller.end_turn(tree.session, TurnId(name), Rid(50), 0.0)
    paths = {name: list(unpack_ids(tree.session.nodes[TurnId(name)].path_ids())) for name in ("x", "y", "z")}
    assert paths == {"x": [0, 1, 2, 10, 11, 90, 91, 92], "y": [40, 41, 90, 91, 92], "z": [0, 1, 2, 3, 90, 91, 92]}
    assert tree.session.stored_len == tree.controller.stored_tokens


# Without a session, and in a streaming one


@pytest.mark.parametrize(
    ("field", "command"),
    [
        ("parent_turn_id", submit("t", [1], "p")),
        ("mode", submit("t", [1], mode=REPLACE)),
        ("offset", submit("t", [1], offset=0)),
        ("drop_previous_output", submit("t", [1], drop=True)),
        ("on_abort", replace(submit("t", [1]), on_abort=OnAbort.KEEP)),
    ],
)
def test_options_when_there_is_no_session_then_they_are_refused_by_name(field: str, command: Submit) -> None:
    with pytest.raises(Refusal) as caught:
        compile_turn(None, replace(command, session_id=None))
    assert (caught.value.reason, caught.value.field) == (RefusalReason.SESSION_REQUIRED, field)
    assert compile_turn(None, replace(submit("t", [1]), session_id=None)).ids == pack_ids([1])


def make_streaming(history: Sequence[int]) -> Session:
    controller = SessionController(CONFIG, EventLog())
    session = controller.open(Open(S, streaming=True), 0.0)
    if history:
        controller.begin_turn(session, TurnId("a"), LiveTurn(Rid(1), Place(), b""))
        controller.commit_turn(session, TurnId("a"), pack_ids(history))
        controller.end_turn(session, TurnId("a"), Rid(1), 0.0)
    return session


@pytest.mark.parametrize("history", [[], [5, 6, 7]], ids=["empty", "history"])
@pytest.mark.parametrize(
    ("field", "command"),
    [
        ("parent_turn_id", submit("t", [1], "other")),
        ("mode", submit("t", [1], mode=REPLACE)),
        ("offset", submit("t", [1], offset=1)),
        ("offset", submit("t", [1], offset=-1)),
        ("drop_previous_output", submit("t", [1], drop=True)),
    ],
)
def test_options_when_the_session_streams_then_what_was_told_is_not_rewritten(
    field: str, command: Submit, history: list[int]
) -> None:
    with pytest.raises(Refusal) as caught:
        compile_turn(make_streaming(history), command)
    assert (caught.value.reason, caught.value.field) == (RefusalReason.STREAMING_APPENDS_ONLY, field)


def test_offset_when_zero_in_a_streaming_session_then_it_is_fine_only_while_that_is_empty() -> None:
    assert compile_turn(make_streaming([]), submit("t", [1], offset=0)).ids == pack_ids([1])
    for offset in (0, 3):
        with pytest.raises(Refusal, match="only appends"):
            compile_turn(make_streaming([5, 6, 7]), submit("t", [1], offset=offset))


@pytest.mark.parametrize("parent", [None, "a"])
def test_append_when_the_session_streams_then_all_of_its_history_comes_first(parent: str | None) -> None:
    compiled = compile_turn(make_streaming([5, 6, 7]), submit("t", [1, 2], parent))
    assert (compiled.ids, compiled.base_len) == (pack_ids([5, 6, 7, 1, 2]), 3)


def test_find_turn_when_it_is_finished_then_it_is_its_node_or_its_end_and_else_it_is_refused() -> None:
    tree = Tree()
    assert find_turn(tree.session, TurnId("b")) is tree.session.nodes[TurnId("b")]
    assert find_turn(make_streaming([5, 6, 7]), TurnId("a")) == 3
    for session in (tree.session, make_streaming([5, 6, 7])):
        for name in ("run", "nobody"):
            with pytest.raises(Refusal) as caught:
                find_turn(session, TurnId(name))
            assert (caught.value.reason, caught.value.value) == (RefusalReason.PARENT_UNKNOWN, name)
