"""How large the pools get: what the configuration wishes, as far as the free memory goes."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from engine.core.pool_needs import TurnNeeds
from engine.executor.memory import ADDRESS_SPACE, FreeMemory, show_bytes
from engine.executor.pool_words import ModelMemory, Units, describe_units


class NoRoomError(Exception):
    """Weights or pools do not fit into the memory that is free. The message is the whole story, and what to do."""


class PoolTooLargeError(NoRoomError):
    """Pools of a size that was asked for by name do not fit."""


class PoolSettingError(Exception):
    """A size was asked for by name that this model's pool can not have. The message begins with the flag."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How the pools are to be sized:

        place  = what one turn at once may need of each pool: `engine.core.pool_needs` says it
        room   = memory_fraction x what is free once the weights are loaded
        wished = min(running_max, num_rows) places; the context is cut to the model's
        pools  = as many places as are wished and fit into the room, down to a page of the full pool; the other pools
                 have their part of it, in whole units. One unit of each pool is padding

    A room without one whole place is refused. With `pool_tokens` that many tokens of full pages are wished, the other
    pools follow in proportion, one place at least, and what does not fit is refused. With `swa_tokens` or `state_slots`
    that pool has this size, however large the others are; less than a place is refused, as is a pool that the model has
    no layers for.
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
    swa_tokens: int | None = None
    """As `pool_tokens`, of the SWA pool."""
    state_slots: int | None = None
    """State slots, the padding slot not counted; None: as above."""
    chunk_tokens: int = 512
    in_flight_max: int = 1
    draft_tokens_max: int = 8

    @property
    def at_once_max(self) -> int:
        """Turns that can run at once."""
        return min(self.running_max, self.num_rows)

    def needs(self, model: ModelMemory) -> TurnNeeds:
        return TurnNeeds(
            page_size=self.page_size,
            context_len=min(self.context_len, model.context_len),
            chunk_tokens=self.chunk_tokens,
            in_flight_max=self.in_flight_max,
            draft_tokens_max=self.draft_tokens_max,
            window=model.window,
            has_states=model.state_bytes > 0,
        )


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What the pools are given, and why."""

    pages: int
    """The padding page 0 included, as in those below."""
    num_bytes: int
    """Of all pools."""
    summary: str
    """The numbers, and why these, for people: a line for each pool."""
    warning: str | None = None
    """What may surprise."""
    swa_pages: int = 0
    """0: there is no such pool."""
    state_slots: int = 0
    """0: there is no such pool."""


def require_room_for_weights(need_bytes: int, free: FreeMemory) -> None:
    """Raises NoRoomError when not even the weights fit into what is free."""
    if need_bytes > free.available_bytes:
        raise NoRoomError(
            f"there is no room for the model: its weights alone need {show_bytes(need_bytes)}, of {free.sentence}: "
            f"choose a smaller model, or {_more_memory(free)}"
        )


def size_pools(policy: PoolPolicy, model: ModelMemory, free: FreeMemory) -> PoolSize:
    """Raises PoolSettingError, PoolTooLargeError or NoRoomError."""
    needs = policy.needs(model)
    _require_settings(policy, needs)
    return _Sizing(policy, model, needs, free).size()


def _require_settings(policy: PoolPolicy, needs: TurnNeeds) -> None:
    page_size = policy.page_size
    if policy.swa_tokens is not None:
        if needs.window is None:
            raise PoolSettingError("--swa-tokens: this model has no sliding-window layers")
        least = needs.swa_pages * page_size
        if policy.swa_tokens < least:
            raise PoolSettingError(
                f"--swa-tokens: must be at least {least}, not {policy.swa_tokens}: one turn may need two windows of "
                f"{needs.window} tokens and what it computes in a step"
            )
    if policy.state_slots is not None:
        if not needs.has_states:
            raise PoolSettingError("--state-slots: this model has no recurrent layers")
        if policy.state_slots < needs.states:
            raise PoolSettingError(
                f"--state-slots: must be at least {needs.states}, not {policy.state_slots}: one turn may need so many"
            )


@dataclass(frozen=True, slots=True)
class _Sizing:
    policy: PoolPolicy
    model: ModelMemory
    needs: TurnNeeds
    free: FreeMemory

    def size(self) -> PoolSize:
        if self.policy.pool_tokens is not None:
            return self._given(self.policy.pool_tokens)
        place_pages = self.needs.full_pages
        if not self._fits(self._units(place_pages)):
            raise NoRoomError(self._no_room_text())
        # Page by page: two contexts never share one, so what is left of each one's last page is no other's.
        wished_pages = self.policy.at_once_max * place_pages
        if self._fits(self._units(wished_pages)):
            return self._pools(wished_pages, self._wished_text())
        fitting = self._largest(wished_pages)
        return self._pools(fitting, f"--memory-fraction {self.policy.memory_fraction:g} of what is free")

    def _given(self, pool_tokens: int) -> PoolSize:
        pages = pool_tokens // self.policy.page_size
        if not self._fits(self._units(pages)):
            raise PoolTooLargeError(self._too_large_text(pool_tokens))
        warning = (
            f"the KV pool of {pool_tokens:,} tokens is smaller than the context of {self.needs.context_len:,}: "
            "no conversation gets longer than the pool"
        )
        return self._pools(pages, "--pool-tokens", warning if pool_tokens < self.needs.context_len else None)

    def _units(self, pages: int, needs: TurnNeeds | None = None) -> Units:
        """Those of all pools, padding not counted, when the full one has so many pages. Never falls with them."""
        needs = needs or self.needs
        swa = max(needs.swa_pages, pages * needs.swa_pages // needs.full_pages)
        states = max(needs.states, pages * needs.states // needs.full_pages)
        if self.policy.swa_tokens is not None:
            swa = self.policy.swa_tokens // self.policy.page_size
        if self.policy.state_slots is not None:
            states = self.policy.state_slots
        return Units(pages, swa, states)

    def _bytes(self, units: Units) -> int:
        return self.model.bytes_of(units, self.policy.page_size)

    def _fits(self, units: Units) -> bool:
        return self._bytes(units) <= self._room_bytes()

    def _largest(self, pages_max: int) -> int:
        """The most pages of the full pool, up to so many, with which all pools fit; 0 when none do."""
        sizes = range(1, pages_max + 1)
        return bisect_right(sizes, self._room_bytes(), key=lambda pages: self._bytes(self._units(pages)))

    def _largest_context(self) -> int:
        """The most pages that a context can have, so that a place for it fits; 0 when none do."""

        def place_bytes(pages: int) -> int:
            needs = replace(self.needs, context_len=pages * self.policy.page_size)
            return self._bytes(self._units(pages, needs))

        return bisect_right(range(1, self.needs.full_pages + 1), self._room_bytes(), key=place_bytes)

    def _pools(self, pages: int, why: str, warning: str | None = None) -> PoolSize:
        """`pages` without the padding."""
        units = self._units(pages)
        lines = describe_units(units, self.model, self.policy.page_size, why=why, free=self.free.sentence)
        return PoolSize(
            pages=units.pages + 1,
            num_bytes=self._bytes(units),
            summary="\n".join(lines),
            warning=warning,
            swa_pages=units.swa_pages + 1 if self.needs.window is not None else 0,
            state_slots=units.states + 1 if self.needs.has_states else 0,
        )

    def _room_bytes(self) -> int:
        return math.floor(self.policy.memory_fraction * self.free.available_bytes)

    def _wished_text(self) -> str:
        text = f"{self.policy.at_once_max} x context of {self.needs.context_len:,}"
        return f"{text}, each in whole pages" if self.needs.context_len % self.policy.page_size else text

    def _room_text(self) -> str:
        return (
            f"--memory-fraction {self.policy.memory_fraction:g} gives {self._pools_text()} "
            f"{show_bytes(self._room_bytes())} of the {self.free.sentence}"
        )

    def _too_large_text(self, pool_tokens: int) -> str:
        pages = pool_tokens // self.policy.page_size
        need_bytes = self._bytes(self._units(pages))
        largest = self._largest(pages) * self.policy.page_size
        smaller = f"the largest that fits is --pool-tokens {largest}" if largest else "no pool would fit"
        return (
            f"--pool-tokens {pool_tokens} needs {show_bytes(need_bytes)} ({self._parts(self._units(pages))}), and "
            f"{self._room_text()}: {smaller}; {self._other_ways(need_bytes)}"
        )

    def _no_room_text(self) -> str:
        units = self._units(self.needs.full_pages)
        need_bytes = self._bytes(units)
        largest = self._largest_context() * self.policy.page_size
        smaller = f"the largest that fits is --context-len {largest}" if largest > 1 else "no context would fit"
        return (
            f"there is no room for the KV of one conversation: a context of {self.needs.context_len:,} tokens needs "
            f"{show_bytes(need_bytes)} ({self._parts(units)}), and {self._room_text()}: {smaller}; "
            f"{self._other_ways(need_bytes)}"
        )

    def _parts(self, units: Units) -> str:
        return self.model.tell_parts(units, self.policy.page_size)

    def _other_ways(self, need_bytes: int) -> str:
        """What else than asking for less makes `need_bytes` fit."""
        more = _more_memory(self.free)
        percent = math.ceil(100 * need_bytes / self.free.available_bytes) if self.free.available_bytes else None
        if percent is not None and percent <= 100:
            more = f"give {self._pools_text()} more with --memory-fraction {percent / 100:g}, or {more}"
        return f"{self._fewer_by_name()}or {more}"

    def _fewer_by_name(self) -> str:
        """Sizes that were asked for by name beside that of the full pool."""
        flags = {"--swa-tokens": self.policy.swa_tokens, "--state-slots": self.policy.state_slots}
        given = [flag for flag, size in flags.items() if size is not None]
        return f"or ask for less with {' and '.join(given)}, " if given else ""

    def _pools_text(self) -> str:
        return "the pool" if self.model.has_one_pool else "the pools"


def _more_memory(free: FreeMemory) -> str:
    if free.source == ADDRESS_SPACE:
        return "raise ulimit -v"
    return "raise the container's limit" if free.is_container_limit else "make more memory free"
