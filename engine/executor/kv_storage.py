"""The K and V pools of all attention layers, and what a token takes of them."""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.ownership import PoolKind
from engine.core.plan import PageCopy
from engine.executor.batch import PoolGeometry
from engine.executor.model_config import KvLayer, ModelConfig

_DTYPE = torch.float32


def kv_bytes_per_token(config: ModelConfig, kind: PoolKind = PoolKind.FULL) -> int:
    """What K and V of one token take in all layers of a pool kind."""
    layers = (layer for layer in config.kv_layers if layer.kind is kind)
    return sum(2 * layer.num_kv_heads * layer.head_dim * _DTYPE.itemsize for layer in layers)


class KvStorage:
    """K and V a layer, `[pages of its pool, page_size, num_kv_heads, head_dim]` float32, zero at start.

    Page 0 of each pool is never written: it reads as zeros, which is what attention pads with.

    All of it is written once when it is made: memory that was only promised would be missing in the middle of some
    later turn. Raises MemoryError when the system does not give it.
    """

    __slots__ = ("_keys", "_layers", "_values")

    def __init__(self, config: ModelConfig, pool: PoolGeometry) -> None:
        try:
            self._keys = [_make_pool(layer, pool) for layer in config.kv_layers]
            self._values = [_make_pool(layer, pool) for layer in config.kv_layers]
        except RuntimeError as error:  # what torch's allocator raises
            wanted_bytes = sum(
                pool.pages(kind) * pool.page_size * kv_bytes_per_token(config, kind)
                for kind in (PoolKind.FULL, PoolKind.SWA)
            )
            raise MemoryError(f"the system gives no {wanted_bytes:,} bytes for the KV pool: {error}") from error
        self._layers = config.kv_layers

    @property
    def num_bytes(self) -> int:
        """Of all pools, the padding pages included."""
        return sum(pool.nbytes for pool in (*self._keys, *self._values))

    def copy_page(self, copy: PageCopy) -> None:
        """Copies K and V of one page in every layer of its pool."""
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            if layer.kind is copy.pool:
                keys[copy.dst].copy_(keys[copy.src])
                values[copy.dst].copy_(values[copy.src])

    def write(self, layer: int, write_idx: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores `keys` and `values`, `[num_tokens, num_kv_heads, head_dim]`, at the flat places `write_idx`."""
        width = self._layers[layer].num_kv_heads * self._layers[layer].head_dim
        for pool, new in ((self._keys[layer], keys), (self._values[layer], values)):
            pool.view(-1, width).index_copy_(0, write_idx, new.flatten(1))

    def head_rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer as `[pages · page_size · num_kv_heads, head_dim]`, one row a token and head."""
        head_dim = self._layers[layer].head_dim
        return self._keys[layer].view(-1, head_dim), self._values[layer].view(-1, head_dim)


def _make_pool(layer: KvLayer, pool: PoolGeometry) -> torch.Tensor:
    shape = (pool.pages(layer.kind), pool.page_size, layer.num_kv_heads, layer.head_dim)
    # Not torch.zeros: whether that writes, or takes pages that the system has promised to be zero, is torch's affair.
    return torch.empty(shape, dtype=_DTYPE).fill_(0.0)


def head_row_index(slots: NDArray[np.int64], num_kv_heads: int) -> NDArray[np.int64]:
    """`slots` of shape [n, block] as the rows of `KvStorage.head_rows`, `[n, num_kv_heads, block]`."""
    heads = np.arange(num_kv_heads, dtype=np.int64)
    return slots[:, None, :] * num_kv_heads + heads[None, :, None]
