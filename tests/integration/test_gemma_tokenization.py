"""Gemma 3's tokens are those of the reference and of llama.cpp, and its texts come back from them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.executor.gguf import open_gguf
from engine.runtime.detokenizer import Detokenizer
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.kit.gemma import gemma_files, needs_gemma, reference_items
from tests.kit.tokenization_peer import NUM_TEXTS, Peer, needs_peer, serve_peer, texts

RUNS = (
    *(character * length for character in (" ", "\n", "\t") for length in (2, 3, 30, 31, 32, 33, 45, 62, 64)),
    *(character * length for character in ("=", "-", "a") for length in (2, 3, 5, 7, 16, 33, 77)),
    *("a   b    c", "   indented\n\tcode\n\n\n  more", "=== x ===", "x  \n y"),
    *("<table><tr><td>x</td></tr></table>", "<td", " [multimodal] x", "<bos>x<eos>", "<start_of_turn>user", "<0x41>"),
)
"""What SentencePiece's own rules are about: runs of one character, and words that are always one token."""

pytestmark = [pytest.mark.exact, needs_gemma]


def compared() -> list[str]:
    return [*texts(), *RUNS]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    first, *rest = gemma_files()
    return tokenizer_from_gguf(open_gguf(first, rest))


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """llama.cpp wants the file in one piece."""
    whole: Path = tmp_path_factory.mktemp("gemma") / "whole.gguf"
    with whole.open("wb") as file:
        for part in gemma_files():
            file.write(part.read_bytes())
    with serve_peer(whole) as served:
        yield served
    whole.unlink()


def test_prompt_ids_when_encoded_here_then_equal_the_references(tokenizer: Tokenizer) -> None:
    """Prompts that the reference tells as ids only are read back first: their text gives the same ids again."""
    told = 0
    for item in reference_items():
        first, *ids = item.prompt_ids
        assert (first,) == tokenizer.prompt_prefix_ids
        told += item.prompt is not None
        text = item.prompt if item.prompt is not None else joined(tokenizer, ids)
        assert tokenizer.encode_text(text, is_continued=True) == ids
        assert tokenizer.encode_text(text) == ids, "no space is put before the first word"
    assert told >= 2


def test_output_ids_when_streamed_then_are_the_references_text(tokenizer: Tokenizer) -> None:
    for item in reference_items():
        detokenizer = Detokenizer(tokenizer.vocabulary)
        pieces = [detokenizer.push([token_id]) for token_id in item.output_ids]
        assert "".join(pieces) + detokenizer.flush() == item.text


@needs_peer
def test_texts_when_encoded_then_are_the_peers_tokens(tokenizer: Tokenizer, peer: Peer) -> None:
    assert len(compared()) > NUM_TEXTS
    different = [text for text in compared() if tokenizer.encode_text(text) != peer.encode(text, obeys_special=False)]
    assert different == []


@needs_peer
def test_texts_when_they_name_special_tokens_then_are_the_peers_tokens(tokenizer: Tokenizer, peer: Peer) -> None:
    naming = [text for text in compared() if tokenizer.encode_template(text) != tokenizer.encode_text(text)]
    assert len(naming) >= 2
    different = [
        text for text in compared() if tokenizer.encode_template(text) != peer.encode(text, obeys_special=True)
    ]
    assert different == []


def test_tokens_when_joined_or_streamed_then_are_the_text_again(tokenizer: Tokenizer) -> None:
    """All but one character: SentencePiece spells a space as ▁, so a ▁ is a space to it."""
    for text in compared():
        ids = tokenizer.encode_text(text)
        assert joined(tokenizer, ids) == text.replace("▁", " ")
        detokenizer = Detokenizer(tokenizer.vocabulary)
        streamed = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()
        assert streamed == text.replace("▁", " ")


def test_special_tokens_when_somebody_says_their_names_then_are_not_obeyed(tokenizer: Tokenizer) -> None:
    special = tokenizer.vocabulary.special_tokens()
    assert {"<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"} <= special.keys()
    for name in ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unk>"):
        assert special[name] not in tokenizer.encode_text(f"x{name}y {name}")
        assert tokenizer.encode_template(f"x{name}").count(special[name]) == 1


def joined(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.vocabulary.token_bytes, ids)).decode()
