"""Matrix products whose rows do not depend on how many rows there are.

A GEMM picks its kernel by the number of rows, and with it the order in which products are summed. Rows are therefore
zero-padded to a multiple of 8, where the kernels agree bit for bit, and computed in tiles of at most 64 rows, so that
the set of shapes ever used is finite and tests can hold all of it.
"""

import torch

ROW_MULTIPLE = 8
ROW_TILE = 64


def can_pack() -> bool:
    """Whether this build has the operators that torch's own compiler emits for a frozen linear (ADR 6).

    They are not public; the public way to oneDNN lays the weight out anew in each call.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        operators = (torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise)  # noqa: SLF001
    except AttributeError:  # how a registry of operators says that it has none of that name
        return False
    return all(callable(operator) for operator in operators)


def padded_rows(num_rows: int) -> int:
    """`num_rows` rounded up to the multiple that all activations are padded to."""
    return -(-num_rows // ROW_MULTIPLE) * ROW_MULTIPLE


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` of shape [n, k] with zero rows added up to `padded_rows(n)`; `x` itself where none are missing."""
    missing = padded_rows(len(x)) - len(x)
    return torch.cat((x, x.new_zeros(missing, x.shape[1]))) if missing else x


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROW_MULTIPLE)  # noqa: SLF001
    return packed


class Linear:
    """`x @ weight.T + bias` in float32.

    With oneDNN in the build the weight is kept in its blocked layout: at 8 rows that is twice as fast as the ordinary
    product, whose library does not know every maker's CPUs. The two differ in last bits, never within one process.
    """

    __slots__ = ("_bias", "_is_packed", "_weight", "out_size")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_packed: bool | None = None
    ) -> None:
        """`weight` is [out, in], `bias` [out]. `is_packed` None means: where the build can."""
        self.out_size = len(weight)
        self._bias = bias
        self._is_packed = can_pack() if is_packed is None else is_packed
        self._weight = _pack(weight) if self._is_packed else weight.t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] → [n, out]; n a multiple of 8."""
        product = self._multiply(x)
        return product if self._bias is None else product.add_(self._bias)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x) % ROW_MULTIPLE == 0, f"{len(x)} rows are not padded"
        if len(x) <= ROW_TILE:
            return self._product(x)
        out = x.new_empty(len(x), self.out_size)
        for start in range(0, len(x), ROW_TILE):
            out[start : start + ROW_TILE] = self._product(x[start : start + ROW_TILE])
        return out

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_packed:
            operators = torch.ops.mkldnn
            product: torch.Tensor = operators._linear_pointwise(x, self._weight, None, "none", [], "")  # noqa: SLF001
            return product
        return torch.mm(x, self._weight)
