"""The kinds of memory that a model needs besides full pages, and pools that are roomy enough for a conversation."""

from dataclasses import dataclass, replace

from engine.core.config import CoreConfig
from engine.core.ids import pages_for

STATE_SLOTS = 65
STATE_INTERVAL = 8
"""Tokens between two states that may be cached, before it is rounded up to whole pages: each first prompt has one."""


@dataclass(frozen=True, slots=True)
class Memory:
    window: int | None = None
    has_states: bool = False

    def fit(self, config: CoreConfig) -> CoreConfig:
        """The same with pools of these kinds, in which nobody goes short before the full pool is empty."""
        window, swa_pages, state_slots = self.window, 0, 0
        if window is not None:
            # No holder has more of them than full pages, and a turn alone must find room for the whole context.
            swa_pages = max(config.pool_pages, pages_for(config.context_len, config.page_size) + 2)
        if self.has_states:
            state_slots = STATE_SLOTS
        return replace(
            config, window=window, swa_pages=swa_pages, state_slots=state_slots, state_interval=STATE_INTERVAL
        )


PLAIN = Memory()


def reuse_interval(config: CoreConfig) -> int:
    """Tokens between two lengths at which the tree can keep what comes before them."""
    return config.checkpoint_interval if config.state_slots else config.page_size


def prompt_chunks(prompt_len: int, config: CoreConfig) -> tuple[int, ...]:
    """Into which chunks a prompt of which nothing is cached is cut: with states one ends at the last checkpoint."""
    border = 0
    if config.state_slots and config.chunk_tokens > 1:
        border = prompt_len // config.checkpoint_interval * config.checkpoint_interval
    chunks: list[int] = []
    start = 0
    while start < prompt_len:
        stop = min(prompt_len, start + config.chunk_tokens)
        if start < border < stop:
            stop = border
        chunks.append(stop - start)
        start = stop
    return tuple(chunks)
