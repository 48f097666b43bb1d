"""SmolLM2's tokens are those of llama.cpp, on texts that tokenizers like to disagree about."""

from collections.abc import Iterator

import pytest

from engine.executor.gguf import GgufFile
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.kit.tokenization_peer import NUM_TEXTS, Peer, needs_peer, serve_peer, texts

pytestmark = pytest.mark.exact


@pytest.fixture(scope="module")
def tokenizer(smollm2_file: GgufFile) -> Tokenizer:
    return tokenizer_from_gguf(smollm2_file)


@pytest.fixture(scope="module")
def peer(smollm2_file: GgufFile) -> Iterator[Peer]:
    with serve_peer(smollm2_file.path) as served:
        yield served


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
