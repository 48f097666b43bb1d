"""Causal attention over paged KV, bit for bit the same for a token whatever batch or chunk it comes in.

The keys of a sequence are cut into blocks of 64, counted from position 0. A *tile* is a few query tokens of one row; a
*work item* is one tile against one block. Every item is a matrix product of one fixed shape, so its result can't
depend on its neighbours; the blocks of a tile are then summed left to right. A key that a query may not see has weight
exactly 0, so a block that lies wholly in a query's future changes nothing, and chunks may be cut anywhere.

    tiles, most blocks first:   t0 t1 t2          items, block by block:   | t0 t1 t2 | t0 t1 | t0 |
    blocks of each:              3  2  1                                      block 0   block 1  2

So the tiles that reach block b are always the first few, and merging a block is an addition of two slices.

With a sliding window the first blocks of a tile lie before all that it may see. It then has no items for them, and its
blocks are counted from the first one that it has: what is summed, and in which order, stays the same, since a block
that lies wholly out of sight adds nothing.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.window import window_start
from engine.executor.batch import Batch, Int32Array, Int64Array
from engine.executor.kv_storage import KvStorage, head_row_index
from engine.executor.linear import padded_rows

BLOCK_LEN = 64
TILE_LEN = 8
"""Query tokens a tile of a chunk; a decode row is a tile of one."""
ITEMS_MAX = 256
"""Work items computed together, so that memory stays bounded for long contexts (12 MiB of keys for 3 KV heads)."""


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """What a layer does to its scores, in this order: scale, soft cap, sinks."""

    scale: float
    soft_cap: float | None = None
    """Scores are `cap · tanh(score / cap)`."""
    sinks: torch.Tensor | None = None
    """[num_heads] one more score a head, which takes its part of the softmax and gives no value. As it is: neither
    scaled nor capped."""

    def __post_init__(self) -> None:
        assert 0.0 < self.scale < math.inf, f"a scale is a finite number above 0, not {self.scale}"
        cap = self.soft_cap
        assert cap is None or 0.0 < cap < math.inf, f"a soft cap is a finite number above 0, not {cap}"


@dataclass(frozen=True, slots=True)
class _Tile:
    row: int
    first_token: int
    num_tokens: int
    first_position: int
    first_block: int
    """The first block that one of its queries may see a key of."""

    @property
    def num_blocks(self) -> int:
        return (self.first_position + self.num_tokens - 1) // BLOCK_LEN + 1 - self.first_block


@dataclass(frozen=True, slots=True)
class _RowSlots:
    """Flat places of a row's keys."""

    first_block: int
    blocks: Int64Array
    """[num_blocks, 64] from `first_block` on."""

    def of_block(self, block: int) -> Int64Array:
        keys: Int64Array = self.blocks[block - self.first_block]
        return keys


@dataclass(frozen=True, slots=True)
class _TileGroup:
    """Tiles of one length that are computed together. `w` counts work items, `m` the padded rows of a tile."""

    tile_len: int
    token_idx: torch.Tensor
    """[tiles, tile_len] token of each query, the tile's first where it is shorter."""
    query_places: torch.Tensor
    """[queries] places in `token_idx`, read as one line, that hold a query of their own."""
    query_tokens: torch.Tensor
    """[queries] the tokens at those places."""
    item_tile: torch.Tensor
    """[w] tile of each work item."""
    tiles_at_block: tuple[int, ...]
    """For each block the number of tiles that reach it; never rises."""
    kv_rows: torch.Tensor
    """[w · num_kv_heads · 64] rows of `KvStorage.head_rows`."""
    is_hidden: torch.Tensor
    """[w, 1, m, 64] True where the query may not see the key."""


class AttentionPlan:
    """Where everything is, for one step and one pool kind: built once, run in each layer of the kind."""

    __slots__ = ("_groups", "_num_kv_heads")

    def __init__(
        self, batch: Batch, kv_indices: Int32Array, num_heads: int, num_kv_heads: int, window: int | None = None
    ) -> None:
        """`kv_indices`: the pages of the kind, cut by the batch's `kv_indptr`. With a `window` a token sees no key
        before `engine.core.window.window_start`, and pages that lie wholly before that may be 0."""
        slots = [_row_slots(batch, kv_indices, row, window) for row in range(batch.num_rows)]
        self._num_kv_heads = num_kv_heads
        self._groups = [
            _build_group(tiles, tile_len, slots, num_heads // num_kv_heads, num_kv_heads, window)
            for tile_len, tiles in _grouped_tiles(batch, window)
        ]

    def run(self, layer: int, queries: torch.Tensor, kv: KvStorage, options: ScoreOptions) -> torch.Tensor:
        """Attention of `queries` [num_tokens, num_heads, head_dim] over layer `layer` of `kv`, of the same shape.

        The KV of the step's own tokens must be in the pages already.
        """
        sinks, num_heads = options.sinks, queries.shape[1]
        assert sinks is None or sinks.shape == (num_heads,), f"{sinks.shape} sinks for {num_heads} heads"
        out = torch.empty_like(queries)
        keys, values = kv.head_rows(layer)
        for group in self._groups:
            tiles_out = _attend(group, queries, keys, values, self._num_kv_heads, options).flatten(0, 1)
            out.index_copy_(0, group.query_tokens, tiles_out.index_select(0, group.query_places))
        return out


def _attend(
    group: _TileGroup,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_kv_heads: int,
    options: ScoreOptions,
) -> torch.Tensor:
    """Softmax attention of one group, `[tiles, tile_len, num_heads, head_dim]`."""
    num_heads, head_dim = queries.shape[1:]
    num_tiles = len(group.token_idx)
    tile_queries = _tile_queries(group, queries, num_kv_heads, options.scale)
    rows_padded = tile_queries.shape[2]
    matrices = len(group.item_tile) * num_kv_heads

    item_queries = tile_queries.index_select(0, group.item_tile).view(matrices, rows_padded, head_dim)
    item_keys = keys.index_select(0, group.kv_rows).view(matrices, BLOCK_LEN, head_dim)
    scores = torch.bmm(item_queries, item_keys.transpose(1, 2)).view(-1, num_kv_heads, rows_padded, BLOCK_LEN)
    if options.soft_cap is not None:
        scores = soft_cap(scores, options.soft_cap)
    scores.masked_fill_(group.is_hidden, -torch.inf)
    highest = _merge_blocks(scores.amax(-1, keepdim=True), group.tiles_at_block, torch.maximum)
    sinks = None if options.sinks is None else _row_sinks(options.sinks, num_kv_heads, group.tile_len, rows_padded)
    if sinks is not None:
        highest = torch.maximum(highest, sinks)
    weights = scores.sub_(highest.index_select(0, group.item_tile)).exp_()
    weight_sums = _merge_blocks(weights.sum(-1, keepdim=True), group.tiles_at_block, torch.add)
    if sinks is not None:
        weight_sums = weight_sums.add_(torch.exp(sinks - highest))
    item_values = values.index_select(0, group.kv_rows).view(matrices, BLOCK_LEN, head_dim)
    products = torch.bmm(weights.view(matrices, rows_padded, BLOCK_LEN), item_values)
    summed = _merge_blocks(
        products.view(-1, num_kv_heads, rows_padded, head_dim), group.tiles_at_block, torch.add
    ).div_(weight_sums)

    rows = num_heads // num_kv_heads * group.tile_len
    by_head = summed[:, :, :rows].view(num_tiles, num_kv_heads, group.tile_len, -1, head_dim)
    return by_head.transpose(1, 2).reshape(num_tiles, group.tile_len, num_heads, head_dim)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """`cap · tanh(x / cap)`: the one definition, for scores and for logits."""
    return torch.tanh(x / cap).mul_(cap)


def _row_sinks(sinks: torch.Tensor, num_kv_heads: int, tile_len: int, rows_padded: int) -> torch.Tensor:
    """The sink of each row of a tile, `[1, num_kv_heads, m, 1]`; 0 for rows that only pad."""
    by_kv_head = sinks.view(num_kv_heads, 1, -1).expand(-1, tile_len, -1).reshape(num_kv_heads, -1)
    padded = sinks.new_zeros(1, num_kv_heads, rows_padded, 1)
    padded[0, :, : by_kv_head.shape[1], 0] = by_kv_head
    return padded


def _tile_queries(group: _TileGroup, queries: torch.Tensor, num_kv_heads: int, scale: float) -> torch.Tensor:
    """Scaled queries, `[tiles, num_kv_heads, m, head_dim]`: the heads that share a KV head are rows of one matrix."""
    num_heads, head_dim = queries.shape[1:]
    rows = num_heads // num_kv_heads * group.tile_len
    gathered = queries[group.token_idx] * scale
    by_kv_head = gathered.view(len(gathered), group.tile_len, num_kv_heads, -1, head_dim).transpose(1, 2)
    padded = queries.new_zeros(len(gathered), num_kv_heads, padded_rows(rows), head_dim)
    padded[:, :, :rows] = by_kv_head.reshape(len(gathered), num_kv_heads, rows, head_dim)
    return padded


def _merge_blocks(
    parts: torch.Tensor,
    tiles_at_block: tuple[int, ...],
    merge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Folds `parts` [w, ...] over the blocks of each tile, left to right: [tiles, ...]."""
    total = parts[: tiles_at_block[0]].clone()
    start = tiles_at_block[0]
    for num_tiles in tiles_at_block[1:]:
        total[:num_tiles] = merge(total[:num_tiles], parts[start : start + num_tiles])
        start += num_tiles
    return total


def _row_slots(batch: Batch, kv_indices: Int32Array, row: int, window: int | None) -> _RowSlots:
    """Of the blocks that one of the row's tokens may see a key of; place 0, which reads as zeros, behind its end."""
    page_size, start, stop = batch.page_size, int(batch.kv_indptr[row]), int(batch.kv_indptr[row + 1])
    kv_len = (stop - start - 1) * page_size + int(batch.last_page_len[row])
    first_block = _first_block(int(batch.positions[batch.qo_indptr[row]]), window)
    first_page, first_key = first_block * BLOCK_LEN // page_size, first_block * BLOCK_LEN
    pages = kv_indices[start + first_page : stop].astype(np.int64)
    slots = (pages[:, None] * page_size + np.arange(page_size)).ravel()
    slots = slots[first_key - first_page * page_size : kv_len - first_page * page_size]
    padded = np.zeros(-(-len(slots) // BLOCK_LEN) * BLOCK_LEN, np.int64)
    padded[: len(slots)] = slots
    return _RowSlots(first_block, padded.reshape(-1, BLOCK_LEN))


def _first_block(position: int, window: int | None) -> int:
    """The first block that the token at `position` may see a key of."""
    return 0 if window is None else window_start(position, window) // BLOCK_LEN


def _grouped_tiles(batch: Batch, window: int | None) -> Iterator[tuple[int, list[_Tile]]]:
    """All tiles by length, most blocks first, in groups of at most `ITEMS_MAX` work items (or of one tile)."""
    lens = np.diff(batch.qo_indptr)
    for tile_len in (1, TILE_LEN):
        rows = [row for row in range(batch.num_rows) if (lens[row] == 1) == (tile_len == 1)]
        tiles = [tile for row in rows for tile in _row_tiles(batch, row, tile_len, window)]
        tiles.sort(key=lambda tile: -tile.num_blocks)
        group: list[_Tile] = []
        num_items = 0
        for tile in tiles:
            if group and num_items + tile.num_blocks > ITEMS_MAX:
                yield tile_len, group
                group, num_items = [], 0
            group.append(tile)
            num_items += tile.num_blocks
        if group:
            yield tile_len, group


def _row_tiles(batch: Batch, row: int, tile_len: int, window: int | None) -> Iterator[_Tile]:
    start, stop = int(batch.qo_indptr[row]), int(batch.qo_indptr[row + 1])
    for first in range(start, stop, tile_len):
        position = int(batch.positions[first])
        yield _Tile(row, first, min(tile_len, stop - first), position, _first_block(position, window))


def _build_group(
    tiles: list[_Tile],
    tile_len: int,
    slots: list[_RowSlots],
    group_size: int,
    num_kv_heads: int,
    window: int | None,
) -> _TileGroup:
    most_blocks = tiles[0].num_blocks
    tiles_at_block = tuple(sum(tile.num_blocks > block for tile in tiles) for block in range(most_blocks))
    item_tile = np.concatenate([np.arange(count) for count in tiles_at_block])
    item_block = np.repeat(np.arange(most_blocks), tiles_at_block)
    item_block += np.array([tile.first_block for tile in tiles])[item_tile]
    item_slots = np.stack(
        [slots[tiles[tile].row].of_block(block) for tile, block in zip(item_tile, item_block, strict=True)]
    )

    offsets = np.arange(tile_len)
    num_tokens = np.array([tile.num_tokens for tile in tiles])
    is_query = offsets < num_tokens[:, None]
    query_offsets = np.where(is_query, offsets, 0)
    token_idx = np.array([tile.first_token for tile in tiles])[:, None] + query_offsets
    first_positions = np.array([tile.first_position for tile in tiles])[:, None]
    # Rows of a tile's matrix are (query, head of the group); those that only pad it to a multiple of 8 see what its
    # first query sees: a row that saw nothing would be no number.
    row_positions = np.repeat(first_positions, padded_rows(tile_len * group_size), axis=1)
    row_positions[:, : tile_len * group_size] = np.repeat(first_positions + query_offsets, group_size, axis=1)
    return _TileGroup(
        tile_len=tile_len,
        token_idx=torch.from_numpy(token_idx),
        query_places=torch.from_numpy(np.flatnonzero(is_query)),
        query_tokens=torch.from_numpy(token_idx[is_query]),
        item_tile=torch.from_numpy(item_tile),
        tiles_at_block=tiles_at_block,
        kv_rows=torch.from_numpy(head_row_index(item_slots, num_kv_heads).ravel()),
        is_hidden=torch.from_numpy(_hidden_keys(row_positions, item_tile, item_block, window)).unsqueeze(1),
    )


def _hidden_keys(
    row_positions: Int64Array, item_tile: Int64Array, item_block: Int64Array, window: int | None
) -> NDArray[np.bool_]:
    """[w, m, 64] whether a row, `row_positions` being [tiles, m], does not see a key: it is later, or too far back."""
    keys = (item_block[:, None] * BLOCK_LEN + np.arange(BLOCK_LEN))[:, None, :]
    is_hidden: NDArray[np.bool_] = keys > row_positions[item_tile][:, :, None]
    if window is not None:
        places, inverse = np.unique(row_positions, return_inverse=True)
        starts = np.array([window_start(place, window) for place in places.tolist()], np.int64)
        row_starts = starts[inverse].reshape(row_positions.shape)
        is_hidden |= keys < row_starts[item_tile][:, :, None]
    return is_hidden
