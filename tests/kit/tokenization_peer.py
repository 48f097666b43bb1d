"""Texts that tokenizers like to disagree about, and llama.cpp's tokenizer to compare with."""

import importlib.util
import json
import random
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.requirements import requires

NUM_TEXTS = 320

FRAGMENTS = (
    *(
        "hello",
        "World",
        "the",
        "don't",
        "I'LL",
        "we've",
        "naïve",
        "Straße",
        "ŒUVRE",
        "x",
        "foo_bar",
        "CamelCase",
        "0x1F",
    ),
    *("1", "42", "2026", "3.14159", "1,000,000", "١٢٣", "²³", "Ⅷ", "½", "007", "12ab34"),
    *(" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff"),
    *("日本語", "中文字符", "한국어", "ไทย", "हिन्दी", "עברית", "العربية", "Ελληνικά", "кириллица"),
    *("🎉", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "☃️", "❤", "🧑🏻‍💻"),
    *("e\u0301", "a\u0308\u0323", "\u0301", "n\u0303", "\u1100\u1161\u11a8"),
    *("\x00", "\x01", "\x1b[0m", "\x7f", "\x80", "\x85", "\xad", "\xff", "\ufffd", "\U0010ffff", "\ue000"),
    *("...", "!?", "(", ")", "{}", "[[", "->", "==", "//", "\\", '"', "'", "`", "#", "@", "$", "€", "—", "…", "|"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<s>", "<0x0A>", "▁", "Ġ", "Ċ"),
)

needs_peer = requires(
    "xllamacpp",
    present=importlib.util.find_spec("xllamacpp") is not None,
    reason="the tokenizer is not compared with llama.cpp's",
)


def texts() -> list[str]:
    """Every fragment alone, then seeded mixtures of them, with and without spaces between."""
    draw = random.Random(20)
    mixed: list[str] = []
    while len(mixed) < NUM_TEXTS - len(FRAGMENTS):
        between = draw.choice(["", " ", "  "])
        mixed.append(between.join(draw.choices(FRAGMENTS, k=draw.randint(2, 12))))
    return [*FRAGMENTS, *mixed]


class Peer:
    """llama.cpp's own server in this process, on loopback."""

    def __init__(self, address: str) -> None:
        assert address.startswith("http://127.0.0.1:")
        self._url = f"{address}/tokenize"

    def encode(self, text: str, *, obeys_special: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": obeys_special}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
            token_ids: list[int] = json.load(answer)["tokens"]
        return token_ids


@contextmanager
def serve_peer(model: Path) -> Iterator[Peer]:
    """llama.cpp with the vocabulary of this GGUF file."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(model)
    options.n_ctx = 64
    options.n_parallel = 1
    options.warmup = False
    options.cpuparams.n_threads = 1
    server = xllamacpp.Server(options)
    yield Peer(server.listening_address)
    del server  # which ends its threads
