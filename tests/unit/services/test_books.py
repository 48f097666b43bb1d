"""The books in words: what a person reads adds up and says why."""

from dataclasses import replace

from services.cli.books import TurnBook, describe_pages, format_pools
from services.client import FinishReason, Pool, PoolStats, Turn, Usage

FULL = Pool("full", 256, 248, 0, 0, 8, 0, draining=0, quarantined=0, page_size=16)
ROWS = Pool("rows", 64, 63, 0, 0, 1, 0, draining=0, quarantined=0, page_size=0)
STATS = PoolStats((FULL, ROWS), 1, 0, 0, 1, 0, steps=9, checks_run=10, balanced=True)


class EndedTurn(Turn):
    """A turn that has ended, without a server."""

    def __init__(self, new: int, usage: Usage, session_len: int) -> None:
        self.new_tokens = new
        self.usage = usage
        self.session_len = session_len
        self.finish_reason = FinishReason.STOP
        self.is_committed = True


def test_close_turn_when_history_was_kept_then_the_last_token_is_explained() -> None:
    book = TurnBook()
    first = EndedTurn(83, Usage(83, 0, 0, 83, 20, 0), 103)
    assert book.close_turn(first, STATS).startswith("turn 1: context 83 = 0 slot + 0 tree + 83 computed (all new); ")
    second = EndedTurn(18, Usage(121, 102, 0, 19, 20, 0), 141)
    assert book.close_turn(second, STATS) == (
        "turn 2: context 121 = 102 slot + 0 tree + 19 computed (18 new ids + the last token of turn 1); "
        "pages: free 248, session 8, cache 0, running 0 of 256"
    )


def test_close_turn_when_a_turn_was_taken_back_between_then_the_committed_one_is_named() -> None:
    book = TurnBook()
    book.close_turn(EndedTurn(83, Usage(83, 0, 0, 83, 20, 0), 103), STATS)
    aborted = EndedTurn(5, Usage(108, 102, 0, 6, 3, 0), 103)
    assert book.take_back(aborted, STATS).startswith("turn 2: taken back: the session is at 103 tokens, as before; ")
    assert "last token of turn 1" in book.close_turn(EndedTurn(5, Usage(108, 102, 0, 6, 3, 0), 111), STATS)


def test_close_turn_when_kv_was_evicted_then_said_how_much() -> None:
    book = TurnBook()
    book.close_turn(EndedTurn(83, Usage(83, 0, 0, 83, 20, 0), 103), STATS)
    line = book.close_turn(EndedTurn(18, Usage(121, 0, 64, 57, 20, 0), 141), STATS)
    assert "18 new ids + 39 whose KV had been given away" in line


def test_close_turn_when_prompt_was_cached_then_said_how_much_of_it() -> None:
    line = TurnBook().close_turn(EndedTurn(83, Usage(83, 0, 80, 3, 20, 0), 103), STATS)
    assert "83 new ids, 80 of them cached" in line


def test_format_pools_when_printed_then_each_line_is_the_equation() -> None:
    header, full, rows, rest = format_pools(STATS).splitlines()
    assert header.split() == ["pool", "available", "evictable", "protected", "session", "uncached", "total"]
    assert full.split("  ")[0] == "full (pages of 16)"
    assert "".join(full.split()).endswith("248+0+0+8+0=256")
    assert "".join(rows.split()) == "rows63+0+0+1+0=64"
    assert rest.startswith("balanced; 10 checks in 9 steps; sessions open 1")
    assert header.index("total") == full.index("256", 20)


def test_describe_pages_when_some_are_draining_then_said_until_when() -> None:
    full = replace(FULL, session_held=4, uncached=4, draining=4)
    shown = describe_pages(replace(STATS, pools=(full, ROWS)))
    assert shown == "pages: free 248, session 4, cache 0, running 4 of 256 (4 until the step in flight ends)"


def test_describe_pages_when_out_of_balance_then_loud() -> None:
    assert "DO NOT BALANCE" in describe_pages(replace(STATS, balanced=False))


def test_take_back_when_nobody_knows_how_the_turn_ended_then_nothing_is_claimed() -> None:
    turn = EndedTurn(5, Usage(108, 102, 0, 6, 3, 0), 103)
    turn.is_committed = None
    assert TurnBook().take_back(turn, STATS).startswith("turn 1: the server did not say how it ended; ")


def test_describe_pages_when_there_are_windows_and_states_then_told_of_each() -> None:
    swa = Pool("swa", 90, 80, 1, 2, 3, 4, draining=1, quarantined=0, page_size=16)
    states = Pool("mamba", 20, 10, 2, 1, 3, 4, draining=0, quarantined=0, page_size=0)
    stats = replace(STATS, pools=(FULL, swa, states, ROWS))
    assert describe_pages(stats) == (
        "pages: free 248, session 8, cache 0, running 0 of 256; "
        "SWA pages: free 80, session 3, cache 3, running 4 of 90 (1 until the step in flight ends); "
        "states: free 10, session 3, cache 3, running 4 of 20"
    )
    names = [line.split("  ")[0] for line in format_pools(stats).splitlines()[1:5]]
    assert names == ["full (pages of 16)", "swa (pages of 16)", "mamba (states)", "rows"]
