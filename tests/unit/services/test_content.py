"""What makes two submissions the same turn: every field but the names, and nothing that the server chose."""

from dataclasses import fields, replace

import pytest

from engine.core.commands import OnAbort, TurnMode
from engine.runtime.handle import TurnOptions
from services.content import digest_content
from services.drafts import ChatDraft, IdsDraft, TextDraft, TurnDraft
from services.tokenization.chat import ChatMessage

TURN = TurnDraft(
    session_id="s",
    turn_id="t",
    parent=None,
    input=TextDraft("hi"),
    max_tokens=None,
    temperature=None,
    ignore_eos=False,
)

OPTIONS = [
    TurnOptions(mode=TurnMode.REPLACE),
    TurnOptions(offset=0),
    TurnOptions(drop_previous_output=True),
    TurnOptions(on_abort=OnAbort.KEEP),
    TurnOptions(priority=0),
    TurnOptions(draft_tokens=1),
]

OTHERS = [
    replace(TURN, parent="p"),
    replace(TURN, input=TextDraft("ho")),
    replace(TURN, input=ChatDraft((ChatMessage("user", "hi"),))),
    replace(TURN, input=ChatDraft((ChatMessage("system", "hi"),))),
    replace(TURN, input=IdsDraft((104, 105))),
    replace(TURN, max_tokens=1),
    replace(TURN, temperature=0.5),
    replace(TURN, ignore_eos=True),
    replace(TURN, top_k=1),
    replace(TURN, top_p=0.5),
    replace(TURN, seed=0),
    replace(TURN, stop=("a", "b")),
    replace(TURN, stop=("b", "a")),
    *(replace(TURN, options=options) for options in OPTIONS),
]


def test_digest_when_only_names_differ_then_equal_and_not_empty() -> None:
    assert digest_content(TURN) == digest_content(replace(TURN, session_id=None, turn_id=None)) != b""


def test_options_when_listed_then_one_for_each_field() -> None:
    changed = [
        field.name
        for options in OPTIONS
        for field in fields(TurnOptions)
        if getattr(options, field.name) != field.default
    ]
    assert changed == [field.name for field in fields(TurnOptions)]


@pytest.mark.parametrize("other", OTHERS, ids=lambda draft: str(draft)[-120:])
def test_digest_when_any_other_field_differs_then_another(other: TurnDraft) -> None:
    assert digest_content(other) != digest_content(TURN)


def test_digest_when_all_differ_then_all_are_different() -> None:
    assert len({digest_content(other) for other in OTHERS}) == len(OTHERS)
