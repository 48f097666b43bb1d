"""SmolLM2's tokens are those of llama.cpp, on texts that tokenizers like to disagree about."""

import importlib.util
import json
import random
import urllib.request
from collections.abc import Iterator

import pytest

from engine.executor.gguf import GgufFile
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf
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

pytestmark = pytest.mark.exact
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


@pytest.fixture(scope="module")
def tokenizer(smollm2_file: GgufFile) -> Tokenizer:
    return tokenizer_from_gguf(smollm2_file)


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


@pytest.fixture(scope="module")
def peer(smollm2_file: GgufFile) -> Iterator[Peer]:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(smollm2_file.path)
    options.n_ctx = 64
    options.n_parallel = 1
    options.warmup = False
    options.cpuparams.n_threads = 1
    server = xllamacpp.Server(options)
    yield Peer(server.listening_address)
    del server  # which ends its threads


@needs_peer
def test_texts_when_encoded_then_are_the_peers_tokens(tokenizer: Tokenizer, peer: Peer) -> None:
    compared = texts()
    assert len(compared) == NUM_TEXTS
    different = [text for text in compared if tokenizer.encode_text(text) != peer.encode(text, obeys_special=False)]
    assert different == []


@needs_peer
def test_texts_when_they_name_special_tokens_then_are_the_peers_tokens(tokenizer: Tokenizer, peer: Peer) -> None:
    compared = texts()
    naming = [text for text in compared if tokenizer.encode_template(text) != tokenizer.encode_text(text)]
    assert len(naming) > 20
    different = [text for text in compared if tokenizer.encode_template(text) != peer.encode(text, obeys_special=True)]
    assert different == []


def test_tokens_when_joined_then_are_the_text_again(tokenizer: Tokenizer) -> None:
    for text in texts():
        for token_ids in (tokenizer.encode_text(text), tokenizer.encode_template(text)):
            assert b"".join(map(tokenizer.vocabulary.token_bytes, token_ids)) == text.encode()
