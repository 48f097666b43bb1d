"""Bytes of the common KV event format, held against hashlib, literals and the agreed order of fields."""

import hashlib

import msgspec
import pytest

from engine.core.ids import pack_ids
from telemetry.kv.wire_format import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    encode_batch,
    namespace_digest,
    pack_sequence,
    page_digest,
    published_hash,
    unpack_sequence,
)
from telemetry.settings import Encoding
from tests.kit.kv_subscriber import FIELDS, read_events

PAGES = ([1, 2, 3, 4], [5, 6, 7, 70_000])
HASHES = [-3488128144981237669, -3765335510028944870]
"""Of these two pages, the second behind the first: the worked example of the format."""
STORED = BlockStored(
    block_hashes=[1, -2],
    parent_block_hash=None,
    token_ids=[5, 6, 7, 8],
    block_size=2,
    lora_id=None,
    medium="GPU",
    extra_keys=[["salt"], None],
    group_idx=1,
    kv_cache_spec_kind="sliding_window",
    kv_cache_spec_sliding_window=6,
    cache_salt="salt",
)


def test_hash_when_two_pages_follow_each_other_then_the_worked_example() -> None:
    by_hand: list[int] = []
    before = b""
    for page in PAGES:
        before = hashlib.sha256(before + b"".join(token.to_bytes(4, "little") for token in page)).digest()
        by_hand.append(int.from_bytes(before[:8], "big", signed=True))
    first = page_digest(None, pack_ids(PAGES[0]))
    second = page_digest(first, pack_ids(PAGES[1]))
    assert [published_hash(first), published_hash(second)] == by_hand == HASHES


def test_hash_when_tokens_are_equal_in_two_namespaces_then_different() -> None:
    ids = pack_ids(PAGES[0])
    names = ("", "tenant-a", "tenant-b")
    assert len({page_digest(namespace_digest(name), ids) for name in names}) == len(names)
    salted = hashlib.sha256(b"sglang-cache-salt-v1\0tenant-a").digest()
    assert page_digest(namespace_digest("tenant-a"), ids) == hashlib.sha256(salted + ids).digest()


def test_batch_when_written_as_maps_then_named_and_without_what_is_absent() -> None:
    unix_s, events, rank = msgspec.msgpack.decode(encode_batch(2.5, [STORED, AllBlocksCleared()], Encoding.MAP))
    assert (unix_s, rank) == (2.5, None)
    assert events[1] == {"type": "AllBlocksCleared"}
    assert events[0] == {
        "type": "BlockStored",
        "block_hashes": [1, -2],
        "parent_block_hash": None,
        "token_ids": [5, 6, 7, 8],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "extra_keys": [["salt"], None],
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 6,
        "cache_salt": "salt",
    }


def test_batch_when_written_as_arrays_then_in_the_agreed_order_with_a_place_for_each_field() -> None:
    removed = BlockRemoved(block_hashes=[7], medium="GPU", group_idx=1)
    _, events, _ = msgspec.msgpack.decode(encode_batch(2.5, [STORED, removed, AllBlocksCleared()], Encoding.ARRAY))
    head = ["BlockStored", [1, -2], None, [5, 6, 7, 8], 2, None, "GPU", None, [["salt"], None]]
    assert events == [
        [*head, 1, "sliding_window", 6, None, None, None],
        ["BlockRemoved", [7], "GPU", 1, None, None],
        ["AllBlocksCleared", None],
    ]


@pytest.mark.parametrize("event", [STORED, BlockRemoved(block_hashes=[7], medium="GPU"), AllBlocksCleared()])
def test_event_when_read_in_both_encodings_then_the_same(event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
    (from_map,), (from_array,) = (read_events(encode_batch(0.0, [event], encoding)) for encoding in Encoding)
    assert {key: value for key, value in from_array.items() if value is not None} == {
        key: value for key, value in from_map.items() if value is not None and key != "cache_salt"
    }
    assert tuple(from_array) == ("type", *FIELDS[from_map["type"]])


def test_sequence_when_packed_then_8_bytes_big_endian_and_nothing_else_is_one() -> None:
    assert pack_sequence(258) == b"\0\0\0\0\0\0\1\2"
    assert unpack_sequence(b"\0\0\0\0\0\0\1\2") == 258
    assert [unpack_sequence(frame) for frame in (b"", b"\0" * 7, b"\0" * 9)] == [None] * 3
