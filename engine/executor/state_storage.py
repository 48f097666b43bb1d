"""The state slots of all recurrent layers, and which of them the rows of a step read and write."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.executor.batch import Int32Array
from engine.executor.model_config import ModelConfig

_DTYPE = torch.float32


def state_bytes(config: ModelConfig) -> int:
    """What one state slot takes in all layers."""
    values = sum(
        layer.conv_shape[0] * layer.conv_shape[1] + layer.ssm_shape[0] * layer.ssm_shape[1] * layer.ssm_shape[2]
        for layer in config.state_layers
    )
    return values * _DTYPE.itemsize


class StateStorage:
    """For each recurrent layer `conv` [state_slots, channels, kernel - 1] and `ssm` [state_slots, heads, head_dim,
    state_size], float32, zero at start. Slot 0 is never written: it is the state of a sequence that has no tokens yet.

    All of it is written once when it is made. Raises MemoryError when the system does not give it.
    """

    __slots__ = ("conv", "ssm")

    def __init__(self, config: ModelConfig, state_slots: int) -> None:
        """`state_slots` counts the padding slot 0."""
        try:
            self.conv = [_zeros((state_slots, *layer.conv_shape)) for layer in config.state_layers]
            self.ssm = [_zeros((state_slots, *layer.ssm_shape)) for layer in config.state_layers]
        except RuntimeError as error:  # what torch's allocator raises
            wanted_bytes = state_slots * state_bytes(config)
            raise MemoryError(f"the system gives no {wanted_bytes:,} bytes for the states: {error}") from error

    @property
    def num_bytes(self) -> int:
        """Of all slots, the padding slot included."""
        return sum(pool.nbytes for pool in (*self.conv, *self.ssm))


@dataclass(frozen=True, slots=True)
class ScanOrder:
    """A step's tokens by their place in their row, so that a recurrence runs through all rows at once.

    rows, longest first:   a0 a1 a2 | b0 b1 | c0        tokens in this order:   a0 b0 c0 | a1 b1 | a2
    """

    rows: torch.Tensor
    """[num_rows] rows, longest first."""
    tokens: torch.Tensor
    """[num_tokens] the token at each place of this order."""
    places: torch.Tensor
    """[num_tokens] the place of each token in this order."""
    rows_at: tuple[int, ...]
    """How many rows have a token at each place in a row: the first ones of `rows`. Never rises."""


@dataclass(frozen=True, slots=True)
class InputWindows:
    """Where a causal convolution over kernel `k` finds its inputs.

    They lie in one line: the last k - 1 inputs before row 0, those of row 0, the k - 1 before row 1, those of row 1.
    """

    first: torch.Tensor
    """[num_tokens] the first of the k inputs of each token; the others follow it."""
    before: torch.Tensor
    """[num_rows · (k - 1)] the inputs before each row."""
    own: torch.Tensor
    """[num_tokens] the input of each token."""
    last: torch.Tensor
    """[num_rows · (k - 1)] the last inputs of each row, its own and those before it."""


class StateAccess:
    """A step's rows and their states. A row reads the state behind its `start_len` tokens, and writes the one behind
    its last token to another slot: what it read stays as it was."""

    __slots__ = ("_order", "_qo_indptr", "_windows", "read_idx", "storage", "write_idx")

    def __init__(
        self, storage: StateStorage, qo_indptr: Int32Array, read_idx: torch.Tensor, write_idx: torch.Tensor
    ) -> None:
        """`qo_indptr` [num_rows + 1]: offsets of each row's tokens. `read_idx` [num_rows]: slots; 0 for a row that
        starts a sequence. `write_idx` [num_rows]: slots, none of them 0, none twice, none that a row reads."""
        self.storage = storage
        self.read_idx = read_idx
        self.write_idx = write_idx
        self._qo_indptr = qo_indptr.astype(np.int64)
        self._order: ScanOrder | None = None
        self._windows: dict[int, InputWindows] = {}

    @property
    def order(self) -> ScanOrder:
        """The same for all layers: made once."""
        if self._order is None:
            self._order = self._scan_order()
        return self._order

    def windows(self, kernel_size: int) -> InputWindows:
        """The same for all layers of a kernel: made once."""
        found = self._windows.get(kernel_size)
        if found is None:
            found = self._windows[kernel_size] = self._input_windows(kernel_size - 1)
        return found

    def _scan_order(self) -> ScanOrder:
        lens = np.diff(self._qo_indptr)
        rows = np.argsort(-lens, kind="stable")
        rows_at = tuple(int((lens > place).sum()) for place in range(int(lens.max())))
        starts = self._qo_indptr[:-1][rows]
        tokens = np.concatenate([starts[:count] + place for place, count in enumerate(rows_at)])
        places = np.empty_like(tokens)
        places[tokens] = np.arange(len(tokens))
        return ScanOrder(torch.from_numpy(rows), torch.from_numpy(tokens), torch.from_numpy(places), rows_at)

    def _input_windows(self, num_before: int) -> InputWindows:
        lens = np.diff(self._qo_indptr)
        row_of_token = np.repeat(np.arange(len(lens)), lens)
        first = np.arange(len(row_of_token)) + row_of_token * num_before
        row_starts = self._qo_indptr[:-1] + np.arange(len(lens)) * num_before
        before = row_starts[:, None] + np.arange(num_before)
        last = before + lens[:, None]
        return InputWindows(
            first=torch.from_numpy(first),
            before=torch.from_numpy(before.ravel()),
            own=torch.from_numpy(first + num_before),
            last=torch.from_numpy(last.ravel()),
        )


def _zeros(shape: Sequence[int]) -> torch.Tensor:
    # Not torch.zeros: whether that writes, or takes pages that the system has promised to be zero, is torch's affair.
    return torch.empty(tuple(shape), dtype=_DTYPE).fill_(0.0)
