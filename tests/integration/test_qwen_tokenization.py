"""Qwen 2's way to cut texts is transformers', on texts that tokenizers like to disagree about."""

from dataclasses import replace

import pytest
from transformers import Qwen2Tokenizer

from engine.executor.gguf import GgufFile
from services.tokenization.tokenizer import tokenizer_from_gguf
from tests.kit.tokenization_peer import NUM_TEXTS, texts

pytestmark = pytest.mark.exact


def test_texts_when_cut_as_qwen2_does_then_are_the_references_tokens(smollm2_file: GgufFile) -> None:
    """Over SmolLM2's tokens and merges: there is no vocabulary of Qwen here, and how a text is cut does not need it."""
    file = replace(smollm2_file, metadata={**smollm2_file.metadata, "tokenizer.ggml.pre": "qwen2"})
    tokenizer = tokenizer_from_gguf(file)
    lines = file.metadata["tokenizer.ggml.merges"]
    assert isinstance(lines, list)
    vocabulary = tokenizer.vocabulary
    reference = Qwen2Tokenizer(
        vocab={vocabulary.text(token_id): token_id for token_id in range(len(vocabulary))},
        merges=[tuple(str(line).split(" ")) for line in lines],
    )
    compared = [text for text in texts() if not any(name in text for name in vocabulary.special_tokens())]
    assert len(compared) > NUM_TEXTS // 2
    different = [
        text for text in compared if tokenizer.encode_text(text) != reference.encode(text, add_special_tokens=False)
    ]
    assert different == []
    otherwise = tokenizer_from_gguf(smollm2_file)
    assert any(tokenizer.encode_text(text) != otherwise.encode_text(text) for text in compared), "pre has an effect"
