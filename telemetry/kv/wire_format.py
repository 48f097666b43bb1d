"""The bytes of the common KV event format: hashes of pages, events as maps or arrays, and frames.

The format is vLLM's and SGLang's, as their publishers and the programs that read them have it (NVIDIA Dynamo's indexer,
smg's relay, llm-d): a message is topic, number, payload; a payload is msgpack of `[seconds since 1970, events, rank]`.
"""

import hashlib
import sys
from collections.abc import Sequence

import msgspec
from msgspec import structs

from engine.core.ids import unpack_ids
from telemetry.settings import Encoding

SCHEMA_VERSION = "1"
"""Grows when fields of events change."""
HASH = "sha256-chain-i64"
"""Name of how pages are hashed: `page_digest`, published as `published_hash`."""
MEDIUM = "GPU"
"""Where the KV is, as readers understand it: the memory that forwards read. Dynamo scores blocks of "GPU" only (one of
"CPU" is an offloaded copy to it), so this is said on a machine without a GPU too."""

_SALT = b"sglang-cache-salt-v1\0"
_SEQUENCE_BYTES = 8
END_SEQUENCE = b"\xff" * _SEQUENCE_BYTES
"""Stands where a number would, behind the last batch of a replay."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Pages that can be reused now, each behind the one before: len(block_hashes) * block_size == len(token_ids)."""

    block_hashes: list[int]
    parent_block_hash: int | None
    """The page before the first; None where a path begins."""
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None
    """Of each page what its hash has in it besides tokens: the namespace, at the first page of a path."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    """The namespace, at every page of it. SGLang's own, so maps only: the order of arrays has no place for it."""


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Pages that can't be reused any more. They may be stored again later."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Nothing that was told before holds any more."""

    ownership: str | None = None


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared

_ARRAY_LENGTHS: dict[type[WireEvent], int] = {BlockStored: BlockStored.__struct_fields__.index("cache_salt")}
"""How many of an event's fields arrays have, where not all."""
_ENCODER = msgspec.msgpack.Encoder()


def encode_batch(unix_s: float, events: Sequence[WireEvent], encoding: Encoding) -> bytes:
    """A payload. There is one publisher, so the rank is nil; Dynamo refuses a payload that has no place for it."""
    written = events if encoding is Encoding.MAP else [_as_array(event) for event in events]
    return _ENCODER.encode([unix_s, written, None])


def _as_array(event: WireEvent) -> list[object]:
    """The tag and all fields in the agreed order, nil where there is none."""
    return [type(event).__name__, *structs.astuple(event)[: _ARRAY_LENGTHS.get(type(event))]]


def pack_sequence(sequence: int) -> bytes:
    return sequence.to_bytes(_SEQUENCE_BYTES, "big")


def unpack_sequence(frame: bytes) -> int | None:
    """None when the frame is no number."""
    return int.from_bytes(frame, "big") if len(frame) == _SEQUENCE_BYTES else None


def page_digest(before: bytes | None, ids: bytes) -> bytes:
    """Of a page with these tokens behind one with digest `before`: 32 bytes. `ids` as int32 bytes, native-endian."""
    return hashlib.sha256((before or b"") + _little_endian(ids)).digest()


def namespace_digest(namespace: str) -> bytes | None:
    """What the first page of a path has before it: None in the common namespace.

    It is SGLang's for a request with this cache salt, so that readers who check hashes can check these too.
    """
    return hashlib.sha256(_SALT + namespace.encode()).digest() if namespace else None


def published_hash(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def _little_endian(ids: bytes) -> bytes:
    if sys.byteorder == "little":
        return ids
    swapped = unpack_ids(ids)
    swapped.byteswap()
    return swapped.tobytes()
