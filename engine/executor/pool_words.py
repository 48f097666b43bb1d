"""What units of the pools take of the memory, and the words for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from engine.executor.memory import show_bytes


class Units(NamedTuple):
    """Of each pool, the padding unit not counted; 0 of those that the model does not have."""

    pages: int
    swa_pages: int
    states: int


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model keeps of its sequences, in bytes."""

    context_len: int
    """Tokens."""
    bytes_per_token: int
    """In the layers with full attention."""
    window: int | None = None
    """Tokens of the window of the SWA layers; None: it has none."""
    swa_bytes_per_token: int = 0
    state_bytes: int = 0
    """0: it has no recurrent layers."""

    @property
    def has_one_pool(self) -> bool:
        """Whether pages of full attention are all there is."""
        return self.window is None and self.state_bytes == 0

    def bytes_of(self, units: Units, page_size: int) -> int:
        """With the padding unit of each pool that there is."""
        return sum(size for _, size in self._sizes(units, page_size))

    def tell_parts(self, units: Units, page_size: int) -> str:
        """As in `1,024 bytes a token`, or what each pool takes where there are several."""
        if self.has_one_pool:
            return f"{self.bytes_per_token:,} bytes a token"
        return ", ".join(f"{name} {show_bytes(size)}" for name, size in self._sizes(units, page_size))

    def _sizes(self, units: Units, page_size: int) -> Iterator[tuple[str, int]]:
        """(name, bytes) of each pool that there is."""
        yield "pages", (units.pages + 1) * page_size * self.bytes_per_token
        if self.window is not None:
            yield "SWA pages", (units.swa_pages + 1) * page_size * self.swa_bytes_per_token
        if self.state_bytes:
            yield "states", (units.states + 1) * self.state_bytes


def describe_units(units: Units, model: ModelMemory, page_size: int, *, why: str, free: str) -> list[str]:
    """A line for each pool, and one for all where there are several. `why` is for the size of the full pool."""
    num_bytes = (units.pages + 1) * page_size * model.bytes_per_token
    tokens = units.pages * page_size
    each = f"{model.bytes_per_token:,} bytes a token"
    lines = [f"KV pool: {tokens:,} tokens ({why}), {show_bytes(num_bytes)} of {free}, {each}"]
    if model.window is not None:
        num_bytes = (units.swa_pages + 1) * page_size * model.swa_bytes_per_token
        tokens = units.swa_pages * page_size
        each = f"{model.swa_bytes_per_token:,} bytes a token"
        lines.append(f"SWA pool: {tokens:,} tokens, windows of {model.window:,}, {show_bytes(num_bytes)}, {each}")
    if model.state_bytes:
        num_bytes = (units.states + 1) * model.state_bytes
        lines.append(f"state pool: {units.states:,} states, {show_bytes(num_bytes)}, {model.state_bytes:,} bytes each")
    if len(lines) > 1:
        lines.append(f"all pools: {show_bytes(model.bytes_of(units, page_size))}")
    return lines
