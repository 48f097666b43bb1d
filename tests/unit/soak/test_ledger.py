"""The client's books beside the server's: what agrees, and each way in which they can disagree."""

from tests.soak.ledger import EndingRow, Ledger, TurnKey, compare_endings


def ledger(*endings: str | None) -> Ledger:
    """One turn for each; None was not heard."""
    made = Ledger()
    for number, ending in enumerate(endings):
        key = TurnKey("", f"t{number}", 1)
        made.accept(key)
        if ending is not None:
            made.end(key, ending)
    return made


def test_books_when_equal_then_no_problem() -> None:
    rows, problems = compare_endings(ledger("stop", "stop", "client"), {"stop": 2, "client": 1, "deadline": 0})
    assert rows == [EndingRow("client", 1, 1), EndingRow("stop", 2, 2)]
    assert problems == []


def test_books_when_the_end_of_a_lost_stream_was_not_heard_then_the_server_has_it_beyond() -> None:
    assert compare_endings(ledger("stop", None), {"stop": 1, "disconnect": 1})[1] == []


def test_books_when_the_server_has_forgotten_an_ending_then_told() -> None:
    problems = compare_endings(ledger("stop", "stop"), {"stop": 1})[1]
    assert problems[0] == "stop: heard 2, server 1"


def test_books_when_the_server_counts_a_turn_twice_then_told() -> None:
    problems = compare_endings(ledger("stop"), {"stop": 2})[1]
    assert problems == ["the server has 1 endings beyond those heard; 0 were not heard"]


def test_books_when_a_turn_that_was_not_heard_never_ended_then_told() -> None:
    problems = compare_endings(ledger("stop", None), {"stop": 1})[1]
    assert problems == ["the server has 0 endings beyond those heard; 1 were not heard"]


def test_books_when_nobody_was_told_of_a_shutdown_then_told() -> None:
    problems = compare_endings(ledger("stop", None), {"stop": 1, "shutdown": 1})[1]
    assert problems == ["shutdown: 1 that were not heard"]


def test_turn_when_two_streams_tell_the_same_end_then_one_turn_and_otherwise_a_violation() -> None:
    made = ledger("stop")
    key = TurnKey("", "t0", 1)
    made.accept(key)
    made.end(key, "stop")
    assert (len(made.turns), made.violations) == (1, [])
    made.end(key, "length")
    assert len(made.violations) == 1


def test_turn_when_tried_again_under_its_name_then_counted_as_another() -> None:
    made = ledger("forward_failed")
    made.accept(TurnKey("", "t0", 2))
    assert (len(made.turns), made.num_unheard) == (2, 1)
