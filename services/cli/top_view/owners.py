"""Who owns a pool: one bar, and the numbers below it. Each owner has a sign of its own, so colours are not needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from services.cli.top_view.inert import crop
from services.cli.top_view.numbers import format_count
from services.client import Pool
from services.client.pools import name_units

BLUE, ORANGE, GREEN, TEAL, GREY, RED = "#5b8ff9", "#f6903d", "#61b15a", "#2bb3a3", "#8c8c8c", "#e5484d"


@dataclass(frozen=True, slots=True)
class Owner:
    """One term of a pool's equation."""

    label: str
    short: str
    sign: str
    colour: str
    count: Callable[[Pool], int]

    @property
    def bar_style(self) -> str:
        """What nobody owns is left empty, so that the rest stands out."""
        return self.colour if self.label == "available" else f"black on {self.colour}"


OWNERS = (
    Owner("available", "avail", "·", GREY, lambda pool: pool.available),
    Owner("evictable", "evict", "~", GREEN, lambda pool: pool.evictable),
    Owner("protected", "prot", "=", TEAL, lambda pool: pool.protected),
    Owner("session", "sess", "#", BLUE, lambda pool: pool.session_held),
    Owner("uncached", "uncach", "+", ORANGE, lambda pool: pool.uncached),
    Owner("quarantined", "quar", "!", RED, lambda pool: pool.quarantined),
)
"""In the order in which they are shown, everywhere."""


_WORDY_WIDTH = 100
"""Wider terminals are told the size of a page, too."""


def share_cells(counts: Sequence[int], cells: int) -> list[int]:
    """Shares `cells` out in proportion to `counts`: all of them, and at least one for each count above 0.

    Nothing is shared out when all counts are 0. There must be a cell for each that is not.
    """
    total = sum(counts)
    if total == 0:
        return [0] * len(counts)
    assert cells >= sum(count > 0 for count in counts), f"{cells} cells for {counts}"
    exact = [count * cells / total for count in counts]
    shares = [max(int(part), 1 if count else 0) for part, count in zip(exact, counts, strict=True)]
    while sum(shares) < cells:
        shares[max(range(len(shares)), key=lambda idx: exact[idx] - shares[idx])] += 1
    while sum(shares) > cells:
        shares[
            max((idx for idx, share in enumerate(shares) if share > 1), key=lambda idx: shares[idx] - exact[idx])
        ] -= 1
    return shares


def render_pools(pools: Sequence[Pool], width: int) -> list[Text]:
    """Two lines for each pool."""
    is_wordy = width >= _WORDY_WIDTH
    labels = [(pool.kind, f"{format_count(pool.total)} {_unit(pool, is_wordy=is_wordy)}") for pool in pools]
    label_width = max((len(text) + 2 for label in labels for text in label), default=0)
    digits = [max(len(format_count(owner.count(pool))) for pool in pools) for owner in OWNERS] if pools else []
    lines = []
    for pool, (kind, size) in zip(pools, labels, strict=True):
        bar_width = max(width - label_width, len(OWNERS))
        lines.append(Text().append(kind.ljust(label_width), style="bold").append_text(render_bar(pool, bar_width)))
        terms = render_terms(pool, bar_width, digits)
        lines.append(Text().append(size.ljust(label_width), style="dim").append_text(terms))
    return [crop(line, width) for line in lines]


def _unit(pool: Pool, *, is_wordy: bool) -> str:
    if not pool.page_size:
        return name_units(pool.kind)
    return f"pages of {pool.page_size}" if is_wordy else "pages"


def render_bar(pool: Pool, cells: int) -> Text:
    """As wide as `cells`, also when the pool is empty."""
    shares = share_cells([owner.count(pool) for owner in OWNERS], cells)
    bar = Text()
    for owner, share in zip(OWNERS, shares, strict=True):
        bar.append(owner.sign * share, style=owner.bar_style)
    bar.append(" " * (cells - bar.cell_len))
    return bar


def render_terms(pool: Pool, cells: int, digits: Sequence[int]) -> Text:
    """The numbers, as wordy as there is room for; `digits`: how wide that of each owner should be, if it can."""
    alone = [0] * len(OWNERS)
    tries = [
        (False, "   ", digits),
        (False, "  ", digits),
        (True, "  ", digits),
        (True, " ", digits),
        (True, " ", alone),
    ]
    for is_short, gap, widths in tries:
        line = _terms(pool, gap, widths, is_short=is_short)
        if line.cell_len <= cells:
            return line
    return crop(_terms(pool, " ", alone, is_short=True, least=1), cells)


def _terms(pool: Pool, gap: str, widths: Sequence[int], *, is_short: bool, least: int = 0) -> Text:
    counts = [(owner, owner.count(pool), width) for owner, width in zip(OWNERS, widths, strict=True)]
    parts = [_term(owner, count, width, is_short=is_short) for owner, count, width in counts if count >= least]
    if pool.draining:
        parts.append(Text().append(f"({format_count(pool.draining)} draining)", style="dim"))
    return Text(gap).join(parts)


def _term(owner: Owner, count: int, width: int, *, is_short: bool) -> Text:
    is_alarm = owner.label == "quarantined" and count > 0
    term = Text().append(owner.sign, style=owner.bar_style if count else owner.colour)
    term.append(f" {owner.short if is_short else owner.label} ", style="bold red" if is_alarm else "dim")
    number = format_count(count).rjust(width)
    return term.append(number, style="bold red" if is_alarm else "bold" if count else "dim")
