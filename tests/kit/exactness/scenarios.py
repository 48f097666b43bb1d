"""What is said in each kind of conversation."""

from collections.abc import Callable

from tests.kit.exactness.cells import Kind
from tests.kit.exactness.conversation import Conversation, Say

INTO_OUTPUT = 5
"""Cuts in mid-turn are so many tokens before the answer's end."""


def stateless(talk: Conversation) -> None:
    """Three turns that send all that was said before."""
    line: tuple[int, ...] = ()
    for number in range(3):
        (line,) = talk.round(Say(f"t{number}", line, talk.texts.said[number]))


def ordinary(talk: Conversation) -> None:
    """Three turns and a branch of two beside the last of them; then the second answer is generated anew."""
    said = talk.texts.said
    talk.open("o", streaming=False)
    (first,) = talk.round(Say("t0", (), said[0], "o"))
    (second,) = talk.round(Say("t1", first, said[1], "o", "t0"))
    _, branch = talk.round(Say("t2", second, said[2], "o", "t1"), Say("b1", first, said[3], "o", "t0"))
    without_answer = second[: len(first) + len(said[1])]
    talk.round(
        Say("b2", branch, said[2], "o", "b1"),
        Say("c2", without_answer, said[4], "o", "t1", drop_previous_output=True),
    )


def streaming(talk: Conversation) -> None:
    """Three turns."""
    talk.open("s", streaming=True)
    line: tuple[int, ...] = ()
    for number in range(3):
        (line,) = talk.round(Say(f"t{number}", line, talk.texts.said[number], "s"))


def forked(talk: Conversation) -> None:
    """A streaming session, forked at a turn, and in mid-turn while a later turn of it runs: all three go on.

    Then an ordinary one, forked inside its first answer: both sides go on.
    """
    said = talk.texts.said
    talk.open("s", streaming=True)
    (first,) = talk.round(Say("t0", (), said[0], "s"))
    (second,) = talk.round(Say("t1", first, said[1], "s"))
    cut = len(second) - INTO_OUTPUT
    talk.fork("s", "f", at_turn="t0")
    _, other = talk.round(
        Say("t2", second, said[2], "s"),
        Say("u1", first, said[3], "f"),
        midway=lambda: talk.fork("s", "g", at_len=cut),
    )
    talk.round(Say("v2", second[:cut], said[4], "g"), Say("u2", other, said[2], "f"))
    talk.open("o", streaming=False)
    (root,) = talk.round(Say("x0", (), said[0], "o"))
    cut = len(root) - INTO_OUTPUT
    talk.fork("o", "p", at_len=cut)
    talk.round(Say("x1", root, said[1], "o", "x0"), Say("y1", root[:cut], said[2], "p", "x0"))


def truncated(talk: Conversation) -> None:
    """A streaming session, cut inside its second answer, then inside its first one; an ordinary one alike."""
    said = talk.texts.said
    talk.open("s", streaming=True)
    (first,) = talk.round(Say("t0", (), said[0], "s"))
    (second,) = talk.round(Say("t1", first, said[1], "s"))
    cut = len(second) - INTO_OUTPUT
    talk.truncate("s", cut)
    talk.round(Say("t2", second[:cut], said[2], "s"))
    cut = len(first) - INTO_OUTPUT
    talk.truncate("s", cut)
    talk.round(Say("t3", first[:cut], said[3], "s"))
    talk.open("o", streaming=False)
    (root,) = talk.round(Say("x0", (), said[0], "o"))
    cut = len(root) - INTO_OUTPUT
    talk.truncate("o", cut)
    talk.round(Say("x1", root[:cut], said[4], "o", "x0"))


SCENARIOS: dict[Kind, Callable[[Conversation], None]] = {
    Kind.STATELESS: stateless,
    Kind.ORDINARY: ordinary,
    Kind.STREAMING: streaming,
    Kind.FORKED: forked,
    Kind.TRUNCATED: truncated,
}
ROUNDS: dict[Kind, int] = {
    Kind.STATELESS: 3,
    Kind.ORDINARY: 4,
    Kind.STREAMING: 3,
    Kind.FORKED: 6,
    Kind.TRUNCATED: 6,
}
"""How many rounds each one has."""
