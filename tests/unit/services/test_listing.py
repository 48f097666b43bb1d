"""Pages of sessions: each that stays open is shown once, whatever opens and closes meanwhile."""

from collections.abc import Sequence

import pytest

from engine.core.ids import SessionId
from engine.core.snapshot import SessionState
from services.errors import CallError
from services.listing import list_page


def states(names: Sequence[str]) -> list[SessionState]:
    return [SessionState(SessionId(name), True, 5, 0, None, 4, 1) for name in names]


def names_of(page: Sequence[SessionState]) -> str:
    return "".join(state.session_id for state in page)


def test_list_page_when_all_fit_then_in_order_and_no_token() -> None:
    page, token = list_page(states("cab"), 3, "")
    assert (names_of(page), token) == ("abc", "")


def test_list_page_when_sessions_come_and_go_between_pages_then_those_that_stay_are_shown_once() -> None:
    page, token = list_page(states("abcdef"), 2, "")
    assert names_of(page) == "ab"
    page, token = list_page(states("acdef0"), 2, token)  # b, the last that was shown, is closed; 0 is new
    assert names_of(page) == "cd"
    page, token = list_page(states("cdefg"), 9, token)
    assert (names_of(page), token) == ("efg", "")


def test_list_page_when_none_is_open_then_empty() -> None:
    assert list_page([], 5, "") == ((), "")


@pytest.mark.parametrize("token", ["!", "YQ", "/w==", "_w=="])
def test_list_page_when_the_token_is_not_ours_then_refused(token: str) -> None:
    with pytest.raises(CallError, match="page_token"):
        list_page(states("a"), 1, token)
