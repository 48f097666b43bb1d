"""The K and V pools of all layers, and what a token takes of them."""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.plan import PageCopy
from engine.executor.batch import PoolGeometry
from engine.executor.model_config import ModelConfig

_DTYPE = torch.float32


def kv_bytes_per_token(config: ModelConfig) -> int:
    """What K and V of one token take in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * _DTYPE.itemsize


class KvStorage:
    """K and V a layer, `[pool_pages, page_size, num_kv_heads, head_dim]` float32, zero at start.

    Page 0 is never written: it reads as zeros, which is what attention pads its last block with.

    All of it is written once when it is made: memory that was only promised would be missing in the middle of some
    later turn. Raises MemoryError when the system does not give it.
    """

    __slots__ = ("_keys", "_values", "head_dim", "num_kv_heads")

    def __init__(self, config: ModelConfig, pool: PoolGeometry) -> None:
        shape = (pool.pool_pages, pool.page_size, config.num_kv_heads, config.head_dim)
        try:
            self._keys = [_make_pool(shape) for _ in range(config.num_layers)]
            self._values = [_make_pool(shape) for _ in range(config.num_layers)]
        except RuntimeError as error:  # what torch's allocator raises
            wanted_bytes = pool.pool_pages * pool.page_size * kv_bytes_per_token(config)
            raise MemoryError(f"the system gives no {wanted_bytes:,} bytes for the KV pool: {error}") from error
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim

    @property
    def num_bytes(self) -> int:
        """Of all pools, the padding page included."""
        return sum(pool.nbytes for pool in (*self._keys, *self._values))

    def copy_page(self, copy: PageCopy) -> None:
        """Copies K and V of one page in every layer."""
        for pool in (*self._keys, *self._values):
            pool[copy.dst].copy_(pool[copy.src])

    def write(self, layer: int, write_idx: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores `keys` and `values`, `[num_tokens, num_kv_heads, head_dim]`, at the flat places `write_idx`."""
        for pool, new in ((self._keys[layer], keys), (self._values[layer], values)):
            pool.view(-1, self.num_kv_heads * self.head_dim).index_copy_(0, write_idx, new.flatten(1))

    def head_rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer as `[pool_pages · page_size · num_kv_heads, head_dim]`, one row a token and head."""
        return self._keys[layer].view(-1, self.head_dim), self._values[layer].view(-1, self.head_dim)


def _make_pool(shape: tuple[int, ...]) -> torch.Tensor:
    # Not torch.zeros: whether that writes, or takes pages that the system has promised to be zero, is torch's affair.
    return torch.empty(shape, dtype=_DTYPE).fill_(0.0)


def head_row_index(slots: NDArray[np.int64], num_kv_heads: int) -> NDArray[np.int64]:
    """`slots` of shape [n, block] as the rows of `KvStorage.head_rows`, `[n, num_kv_heads, block]`."""
    heads = np.arange(num_kv_heads, dtype=np.int64)
    return slots[:, None, :] * num_kv_heads + heads[None, :, None]
