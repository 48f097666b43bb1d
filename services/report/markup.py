"""Builds HTML and SVG as text. Whatever did not come from here is escaped: ids are chosen by clients."""

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import NewType

Markup = NewType("Markup", str)
"""Text that may stand in the page as it is."""

_VOID = frozenset({"meta", "br"})
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Control characters, which XML forbids, and those that reorder or hide what stands beside them."""


def escape_text(text: str) -> Markup:
    """What can not be seen becomes U+FFFD."""
    seen = "".join("\ufffd" if unicodedata.category(letter) in _UNSEEN else letter for letter in text)
    return Markup(escape(seen))


def element(name: str, /, *children: Markup, **attributes: str | float | None) -> Markup:
    """`class_` is `class`, underscores become hyphens, an attribute that is None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_format_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{''.join(children)}</{name}>")


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def text(x: float, y: float, words: str, class_: str | None = None) -> Markup:
    """A line of text in an SVG."""
    return element("text", escape_text(words), x=x, y=y, class_=class_)


def title(*lines: str) -> Markup:
    """What a browser shows over the element that this is in, with and without a script."""
    return element("title", Markup("\n".join(map(escape_text, lines))))


def format_px(value: float) -> str:
    """A tenth of a pixel is as exact as a picture is."""
    short = f"{value:.1f}"
    return short.removesuffix(".0")


def _format_attribute(value: str | float) -> str:
    return escape_text(value) if isinstance(value, str) else format_px(value)
