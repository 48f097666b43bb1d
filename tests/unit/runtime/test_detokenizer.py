"""The incremental detokenizer: no split of the ids changes the text, and nothing waits longer than it must."""

import random
from collections.abc import Sequence

import pytest

from engine.runtime.detokenizer import Detokenizer

EOS = 300


class ByteVocabulary:
    """Ids 0..255 are single bytes, 256 is a word with a leading space, 300 is special."""

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == EOS:
            return b"<|eos|>"
        return b" the" if token_id == 256 else bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS


def stream(parts: Sequence[Sequence[int]]) -> list[str]:
    detokenizer = Detokenizer(ByteVocabulary())
    return [*(detokenizer.push(part) for part in parts), detokenizer.flush()]


def split(ids: Sequence[int], choose: random.Random) -> list[Sequence[int]]:
    edges = sorted(choose.sample(range(len(ids) + 1), choose.randint(0, min(len(ids), 6))))
    starts, stops = [0, *edges], [*edges, len(ids)]
    return [ids[start:stop] for start, stop in zip(starts, stops, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_push_when_ids_are_split_anyhow_then_joined_text_is_the_same(seed: int) -> None:
    """STR-05 (ai-dynamo/dynamo#12688): two equal emoji, byte by byte, among random bytes, valid and not."""
    choose = random.Random(seed)
    texts = ["🧑‍🚀", "é", "日本", "a", "\x00"]
    ids = [byte for _ in range(8) for byte in choose.choice(texts).encode()]
    ids[choose.randrange(len(ids)) : 0] = list("🙂🙂".encode())
    ids.insert(choose.randrange(len(ids)), choose.choice([0xFF, 0xC3, 0xE2, 0x80]))
    expected = bytes(ids).decode(errors="replace")
    for _ in range(30):
        assert "".join(stream(split(ids, choose))) == expected


def test_push_when_character_is_unfinished_then_only_its_bytes_wait() -> None:
    head, tail = "é".encode()
    assert stream([[ord("a"), head], [tail, ord("b")]]) == ["a", "éb", ""]


def test_flush_when_eos_inside_a_character_then_one_replacement_mark() -> None:
    """STR-07 (ohdearquant/lattice#751): the tail is told once, streaming or not."""
    ids = [ord("a"), *"🙂".encode()[:2], EOS]
    assert stream([[token_id] for token_id in ids]) == ["a", "", "", "", "\ufffd"]
    assert "".join(stream([ids])) == "a\ufffd"


def test_push_when_second_half_never_comes_then_replaced_in_the_next_step() -> None:
    """STR-09 (Blaizzy/mlx-vlm#1778): half a character, then a token that starts with a space, then the other half."""
    first, second, third = "日".encode()
    assert stream([[first, second], [256], [third]]) == ["", "\ufffd the", "\ufffd", ""]


def test_push_when_byte_is_invalid_mid_text_then_replaced_at_once() -> None:
    """STR-09: a stream never stalls on bytes that can't become a character."""
    assert stream([[ord("a"), 0xFF], [ord("b")]]) == ["a\ufffd", "b", ""]


def test_push_when_token_is_special_then_no_text_and_nothing_lost() -> None:
    head, tail = "é".encode()
    assert stream([[head, EOS], [tail]]) == ["", "é", ""]
