"""The gates of models with windows and states: one turn alone has to find room in each pool, whatever it does."""

from dataclasses import replace

import pytest

from engine.core.admission import check_input, windows_to_come
from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import Rid, TurnId, pack_ids, pages_for
from engine.core.states import STATES_A_TURN

PLAIN = CoreConfig(page_size=4, pool_pages=129, num_rows=4, context_len=512, vocab_size=100, chunk_tokens=16)
WINDOWS = replace(PLAIN, window=16, swa_pages=129)
STATES = replace(PLAIN, state_slots=1 + STATES_A_TURN)


@pytest.mark.parametrize(("window", "swa_pages"), [(16, 0), (None, 129)])
def test_config_when_there_is_a_window_without_a_pool_or_the_other_way_round_then_it_says_so(
    window: int | None, swa_pages: int
) -> None:
    with pytest.raises(ValueError, match=f"a window of {window} tokens and {swa_pages} swa_pages: both, or neither"):
        replace(PLAIN, window=window, swa_pages=swa_pages)


@pytest.mark.parametrize("window", [0, -1])
def test_config_when_the_window_is_not_a_token_then_it_says_so(window: int) -> None:
    with pytest.raises(ValueError, match="window must be at least 1"):
        replace(WINDOWS, window=window)


@pytest.mark.parametrize("state_interval", [0, -1])
def test_config_when_the_interval_is_not_a_token_then_it_says_so(state_interval: int) -> None:
    with pytest.raises(ValueError, match="state_interval must be at least 1"):
        replace(STATES, state_interval=state_interval)


def test_config_when_swa_pages_are_too_few_for_one_turn_then_it_names_the_least_and_that_is_accepted() -> None:
    least = 1 + WINDOWS.swa_turn_pages
    assert replace(WINDOWS, swa_pages=least).swa_pages == least
    with pytest.raises(ValueError, match=rf"swa_pages must be at least {least} \(page 0 is padding\), not {least - 1}"):
        replace(WINDOWS, swa_pages=least - 1)


@pytest.mark.parametrize("swa_pages", [-1, 1])
def test_config_when_a_pool_of_windows_is_nothing_but_padding_then_it_is_refused(swa_pages: int) -> None:
    with pytest.raises(ValueError, match="swa_pages must be at least"):
        replace(WINDOWS, swa_pages=swa_pages)


@pytest.mark.parametrize("state_slots", [1, STATES_A_TURN, -1])
def test_config_when_state_slots_are_too_few_for_one_turn_then_it_names_the_least(state_slots: int) -> None:
    least = 1 + STATES_A_TURN
    with pytest.raises(ValueError, match=rf"state_slots must be 0, or at least {least} .*, not {state_slots}"):
        replace(STATES, state_slots=state_slots)


def test_swa_turn_pages_when_a_turn_is_short_then_its_own_length_is_enough() -> None:
    """13 tokens of context in 4 pages, and one that a step may write behind them; else two windows and a step."""
    assert replace(WINDOWS, context_len=13).swa_turn_pages == 5
    assert WINDOWS.swa_turn_pages == WINDOWS.swa_span_pages + WINDOWS.swa_pin_pages < 129


@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_swa_span_pages_when_plans_are_in_flight_then_a_window_what_is_cut_and_all_of_them_fit(
    in_flight_max: int,
) -> None:
    """Wherever they begin inside a page: a window behind a cut, and a chunk with drafts a plan."""
    config = replace(WINDOWS, in_flight_max=in_flight_max)
    most = 0
    for length in range(200, 240):
        seen_from = (length - config.cut_back_max) // 4 * 4 - 16 + 1
        stop = length + in_flight_max * (config.chunk_tokens + config.drafts_max)
        most = max(most, pages_for(stop, 4) - seen_from // 4)
    assert most <= config.swa_span_pages <= most + 2


def test_drafts_when_there_are_states_then_none_are_taken_and_the_refusal_says_why() -> None:
    assert (PLAIN.drafts_max, WINDOWS.drafts_max, STATES.drafts_max) == (8, 8, 0)
    command = Submit(Rid(1), TurnId("t"), pack_ids([1]), None, max_tokens=2, draft_tokens=1)
    check_input(WINDOWS, command)
    check_input(STATES, replace(command, draft_tokens=0))
    with pytest.raises(Refusal, match="recurrent states can't be taken back") as caught:
        check_input(STATES, command)
    refusal = caught.value
    told = (refusal.reason, refusal.field, refusal.value, refusal.limit)
    assert told == (RefusalReason.DRAFT_TOKENS_INVALID, "draft_tokens", 1, 0)


def test_cut_back_max_when_drafts_can_be_taken_then_a_turn_may_be_cut_by_as_many_more() -> None:
    assert (PLAIN.cut_back_max, STATES.cut_back_max, replace(PLAIN, draft_tokens_max=3).cut_back_max) == (10, 2, 5)


@pytest.mark.parametrize(("state_interval", "in_pages"), [(1, 4), (4, 4), (5, 8), (256, 256)])
def test_checkpoint_interval_when_asked_then_it_is_in_whole_pages(state_interval: int, in_pages: int) -> None:
    assert replace(STATES, state_interval=state_interval).checkpoint_interval == in_pages


def test_windows_to_come_when_a_turn_grows_then_never_more_than_a_span_is_due() -> None:
    span, pin = WINDOWS.swa_span_pages, WINDOWS.swa_pin_pages
    told = [windows_to_come(WINDOWS, pages, 2, 0, is_pinned=False) for pages in (0, 1, span - 2, span - 1, 1000)]
    assert told == [0, 1, span - 2, span - 2, span - 2]
    assert windows_to_come(WINDOWS, 1000, 2, 0, is_pinned=True) == span - 2 + pin
    assert windows_to_come(WINDOWS, 5, span + pin + 1, 0, is_pinned=True) == 0


def test_windows_to_come_when_the_pinned_window_is_the_caches_then_it_is_not_due_once_more() -> None:
    span, pin = WINDOWS.swa_span_pages, WINDOWS.swa_pin_pages
    told = [windows_to_come(WINDOWS, 1000, 0, locked, is_pinned=True) for locked in (0, 1, pin, pin + 1)]
    assert told == [span + pin, span + pin - 1, span, span]


def test_windows_to_come_when_there_are_states_then_the_window_of_a_checkpoint_may_be_due_as_well() -> None:
    both = replace(WINDOWS, state_slots=6, swa_pages=1000)
    assert windows_to_come(both, 1000, 0, 0, is_pinned=False) == both.swa_span_pages + both.swa_pin_pages
