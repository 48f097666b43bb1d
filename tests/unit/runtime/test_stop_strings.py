"""Stop strings: found however the text is split, and nothing waits that can not be a part of one."""

import random
from collections.abc import Sequence

import pytest

from engine.runtime.stop_strings import StopMatcher


def stream(stops: Sequence[str], parts: Sequence[str]) -> tuple[list[str], str | None]:
    """What each part made certain, the rest at the end, and the stop string that was found."""
    matcher = StopMatcher(stops)
    told = [matcher.push(part) for part in parts]
    return [*told, matcher.flush()], matcher.found


def reference(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """The first stop string to be complete, by trying every end: the slow way."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            found = max(complete, key=len)
            return text[: end - len(found)], found
    return text, None


def test_push_when_the_text_begins_with_the_stop_string_then_none_of_it_is_told() -> None:
    """STR-01 (vllm-project/vllm#3574)."""
    assert stream(["DEFGHIJ"], ["DEF", "G", "HI", "J", "K"]) == (["", "", "", "", "", ""], "DEFGHIJ")


def test_push_when_the_stop_string_never_comes_then_every_part_is_told_at_once() -> None:
    """STR-03 (smg-project/smg#2203): only what a stop text begins with waits."""
    parts = ["one ", "two ", "Z", "three", "ZZ", "Zebra"]
    assert stream(["Z" * 10], parts) == (["one ", "two ", "", "Zthree", "", "ZZZebra", ""], None)


def test_push_when_the_stop_string_ends_inside_a_part_then_cut_before_it() -> None:
    """STR-11 (vllm-project/vllm#3672)."""
    assert stream(["ab"], ["xabz"]) == (["x", ""], "ab")


def test_flush_when_the_beginning_of_a_stop_string_is_left_then_told() -> None:
    """STR-13 (vllm-project/vllm#58228): a turn that its limit ended has said what it said."""
    assert stream(["END"], ["the EN"]) == (["the ", "EN"], None)


def test_push_when_a_beginning_fails_then_a_later_one_inside_it_still_counts() -> None:
    assert stream(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", "", ""], "aab")


@pytest.mark.parametrize(
    ("stops", "text", "told", "found"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabc", "x", "abc"),
        (["c", "abc"], "abc", "", "abc"),
    ],
)
def test_push_when_several_overlap_then_the_first_complete_and_of_these_the_longest(
    stops: list[str], text: str, told: str, found: str
) -> None:
    for parts in ([text], list(text)):
        pieces, stop = stream(stops, parts)
        assert ("".join(pieces), stop) == (told, found)


def test_push_when_nothing_is_to_stop_then_nothing_waits() -> None:
    assert stream([], ["a", "b"]) == (["a", "b", ""], None)


@pytest.mark.parametrize("seed", range(20))
def test_push_when_text_is_split_anyhow_then_as_the_slow_way_finds_it(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(50):
        stops = ["".join(choose.choices("ab🙂", k=choose.randint(1, 5))) for _ in range(choose.randint(1, 3))]
        text = "".join(choose.choices("ab🙂", k=30))
        edges = sorted(choose.sample(range(31), 6))
        parts = [text[start:stop] for start, stop in zip([0, *edges], [*edges, 30], strict=True)]
        pieces, found = stream(stops, parts)
        assert ("".join(pieces), found) == reference(stops, text)
