"""What a turn has generated: readable from any id on, with the same text for the same ids."""

import hashlib
import struct

import pytest

from engine.core.ids import pack_ids
from engine.runtime.handle import Delta
from engine.runtime.output import DELTA_IDS_MAX, TurnOutput, digest_ids

EOS = 300
B_AND_HALF = 301
"""The letter b and the first byte of another character."""


class ByteVocabulary:
    """Ids 0..255 are single bytes, 300 is special and spelled `<|eos|>`."""

    def token_bytes(self, token_id: int) -> bytes:
        return {EOS: b"<|eos|>", B_AND_HALF: b"b\xc3"}.get(token_id) or bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS


def output_of(text: str, *stops: str) -> TurnOutput:
    output = TurnOutput(ByteVocabulary(), stops)
    output.push(text.encode())
    return output


def test_read_when_from_any_id_then_text_and_rest_are_what_the_ids_before_did_not_tell() -> None:
    output = output_of("né🙂 x EN", "END")
    output.complete()
    whole = output.read(0)
    assert whole.text == "né🙂 x "
    assert output.read_rest() == Delta(len(output), (), "EN")
    for start in range(len(output)):
        head = TurnOutput(ByteVocabulary(), ["END"])
        head.push(whole.token_ids[:start])
        assert head.read(0).text + output.read(start).text == whole.text


def test_push_when_a_stop_string_is_complete_then_ids_behind_it_are_dropped() -> None:
    """STR-11: the ids up to the completing one are told, the text is cut before the stop string."""
    output = TurnOutput(ByteVocabulary(), ["ab"])
    assert not output.push(b"xa")
    assert output.push(b"bz")
    assert not output.push(b"more")
    output.complete()
    assert (output.stop_string, output.read(0), output.read_rest()) == ("ab", Delta(0, tuple(b"xab"), "x"), None)


def test_push_when_a_special_token_is_spelled_like_the_stop_string_then_it_is_no_text() -> None:
    """STR-11: special tokens never form text."""
    output = TurnOutput(ByteVocabulary(), ["<|eos|>", "ab"])
    output.push([ord("a"), EOS, ord("b")])
    assert (output.stop_string, output.read(0).text) == ("ab", "")


def test_complete_when_a_character_and_a_stop_string_are_unfinished_then_both_are_told_in_order() -> None:
    output = TurnOutput(ByteVocabulary(), ["END"])
    output.push([*b"xE", "é".encode()[0]])
    output.complete()
    output.complete()
    assert output.read(0).text == "x"
    assert output.read_rest() == Delta(3, (), "E\ufffd")


def test_complete_when_stopped_inside_a_character_then_nothing_of_it_is_told() -> None:
    output = TurnOutput(ByteVocabulary(), ["ab"])
    assert output.push([ord("x"), ord("a"), B_AND_HALF])
    output.complete()
    assert (output.read(0).text, output.read_rest()) == ("x", None)


def test_read_when_there_are_very_many_ids_then_a_delta_is_bounded() -> None:
    output = output_of("a" * (DELTA_IDS_MAX + 3))
    first = output.read(0)
    assert len(first.token_ids) == len(first.text) == DELTA_IDS_MAX
    assert output.read(DELTA_IDS_MAX) == Delta(DELTA_IDS_MAX, (97, 97, 97), "aaa")


@pytest.mark.parametrize("count", [0, 2, 3])
def test_digest_when_taken_then_of_little_endian_integers(count: int) -> None:
    packed = struct.pack(f"<{count}i", *b"abc"[:count])
    assert digest_ids(pack_ids(list(b"abc"[:count]))) == hashlib.sha256(packed).digest()
