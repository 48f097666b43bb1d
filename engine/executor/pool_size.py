"""How many pages the KV pool gets: what the configuration wishes, as far as the free memory goes."""

import math
from dataclasses import dataclass

from engine.core.ids import pages_for
from engine.executor.memory import ADDRESS_SPACE, FreeMemory, show_bytes


class NoRoomError(Exception):
    """Weights or KV pool do not fit into the memory that is free. The message is the whole story, and what to do."""


class PoolTooLargeError(NoRoomError):
    """A pool of so many tokens was asked for by name, and does not fit."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How the pool is to be sized:

        room   = memory_fraction x what is free once the weights are loaded
        wished = min(running_max, num_rows) x the pages of one context, which is cut to the model's
        pool   = the smaller of both, in whole pages; one page of the room is padding

    A room without place for one whole context is refused. With `pool_tokens` that many are wished, and a pool that
    does not fit into the room is refused.
    """

    page_size: int
    """Tokens a page."""
    pool_tokens: int | None
    """A multiple of `page_size`; None: as above."""
    memory_fraction: float
    """Above 0, at most 1."""
    running_max: int
    context_len: int
    num_rows: int
    """Rows that turns can have, the padding row not counted: no more turns run at once."""

    @property
    def at_once_max(self) -> int:
        """Turns that can run at once."""
        return min(self.running_max, self.num_rows)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What the pool is given, and why."""

    pages: int
    """The padding page 0 included."""
    num_bytes: int
    summary: str
    """The numbers, and why these, for people."""
    warning: str | None = None
    """What may surprise."""


def require_room_for_weights(need_bytes: int, free: FreeMemory) -> None:
    """Raises NoRoomError when not even the weights fit into what is free."""
    if need_bytes > free.available_bytes:
        raise NoRoomError(
            f"there is no room for the model: its weights alone need {show_bytes(need_bytes)}, of {free.sentence}: "
            f"choose a smaller model, or {_more_memory(free)}"
        )


def size_pool(policy: PoolPolicy, *, model_context_len: int, bytes_per_token: int, free: FreeMemory) -> PoolSize:
    """Raises PoolTooLargeError or NoRoomError."""
    return _Sizing(policy, min(policy.context_len, model_context_len), bytes_per_token, free).size()


@dataclass(frozen=True, slots=True)
class _Sizing:
    policy: PoolPolicy
    context_len: int
    bytes_per_token: int
    free: FreeMemory

    def size(self) -> PoolSize:
        if self.policy.pool_tokens is not None:
            return self._given(self.policy.pool_tokens)
        room_pages = self._room_pages()
        context_pages = pages_for(self.context_len, self.policy.page_size)
        if context_pages > room_pages:
            raise NoRoomError(self._no_room_text(context_pages))
        # Page by page: two contexts never share one, so what is left of each one's last page is no other's.
        wished_pages = self.policy.at_once_max * context_pages
        if wished_pages <= room_pages:
            return self._pool(wished_pages, self._wished_text())
        return self._pool(room_pages, f"--memory-fraction {self.policy.memory_fraction:g} of what is free")

    def _given(self, pool_tokens: int) -> PoolSize:
        pages = pool_tokens // self.policy.page_size
        if pages > self._room_pages():
            raise PoolTooLargeError(self._too_large_text(pool_tokens))
        warning = (
            f"the KV pool of {pool_tokens:,} tokens is smaller than the context of {self.context_len:,}: "
            "no conversation gets longer than the pool"
        )
        return self._pool(pages, "--pool-tokens", warning if pool_tokens < self.context_len else None)

    def _pool(self, pages: int, why: str, warning: str | None = None) -> PoolSize:
        """`pages` without the padding."""
        num_bytes = self._bytes(pages + 1)
        summary = (
            f"KV pool: {pages * self.policy.page_size:,} tokens ({why}), {show_bytes(num_bytes)} of "
            f"{self.free.sentence}, {self.bytes_per_token:,} bytes a token"
        )
        return PoolSize(pages + 1, num_bytes, summary, warning)

    def _room_pages(self) -> int:
        """Pages besides the padding that fit into the room."""
        return max(0, self._room_bytes() // self._bytes(1) - 1)

    def _room_bytes(self) -> int:
        return math.floor(self.policy.memory_fraction * self.free.available_bytes)

    def _bytes(self, pages: int) -> int:
        return pages * self.policy.page_size * self.bytes_per_token

    def _wished_text(self) -> str:
        text = f"{self.policy.at_once_max} x context of {self.context_len:,}"
        return f"{text}, each in whole pages" if self.context_len % self.policy.page_size else text

    def _room_text(self) -> str:
        return (
            f"--memory-fraction {self.policy.memory_fraction:g} gives the pool {show_bytes(self._room_bytes())} of the "
            f"{self.free.sentence}"
        )

    def _too_large_text(self, pool_tokens: int) -> str:
        need_bytes = self._bytes(pool_tokens // self.policy.page_size + 1)
        largest = self._room_pages() * self.policy.page_size
        smaller = f"the largest that fits is --pool-tokens {largest}" if largest else "no pool would fit"
        return (
            f"--pool-tokens {pool_tokens} needs {show_bytes(need_bytes)} ({self.bytes_per_token:,} bytes a token), and "
            f"{self._room_text()}: {smaller}; {self._other_ways(need_bytes)}"
        )

    def _no_room_text(self, context_pages: int) -> str:
        need_bytes = self._bytes(context_pages + 1)
        largest = self._room_pages() * self.policy.page_size
        smaller = f"the largest that fits is --context-len {largest}" if largest > 1 else "no context would fit"
        return (
            f"there is no room for the KV of one conversation: a context of {self.context_len:,} tokens needs "
            f"{show_bytes(need_bytes)} ({self.bytes_per_token:,} bytes a token), and {self._room_text()}: {smaller}; "
            f"{self._other_ways(need_bytes)}"
        )

    def _other_ways(self, need_bytes: int) -> str:
        """What else than asking for less makes `need_bytes` fit."""
        more = _more_memory(self.free)
        percent = math.ceil(100 * need_bytes / self.free.available_bytes) if self.free.available_bytes else None
        if percent is None or percent > 100:
            return f"or {more}"
        return f"or give the pool more with --memory-fraction {percent / 100:g}, or {more}"


def _more_memory(free: FreeMemory) -> str:
    if free.source == ADDRESS_SPACE:
        return "raise ulimit -v"
    return "raise the container's limit" if free.is_container_limit else "make more memory free"
