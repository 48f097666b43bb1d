"""How Qwen 2 cuts a text before it merges."""

from pathlib import Path

import pytest

from engine.executor.gguf import open_gguf
from services.tokenization.tokenizer import PRE_TOKENIZERS, tokenizer_from_gguf
from tests.kit.gguf_files import write_gguf
from tests.kit.tiny_vocabulary import tiny_vocabulary_metadata


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello  world", ["hello", "Ġ", "Ġworld"]),
        ("it's I'LL", ["it", "'s", "ĠI", "'LL"]),
        ("x2026", ["x", "2", "0", "2", "6"]),
        ("(foo_bar)", ["(foo", "_bar", ")"]),
        ("a->b //\n", ["a", "->", "b", "Ġ//Ċ"]),
        ("a \n\n b", ["a", "ĠĊĊ", "Ġb"]),
        ("end   ", ["end", "ĠĠĠ"]),
    ],
)
def test_text_when_cut_then_digits_stand_alone_and_words_keep_what_is_before_them(text: str, words: list[str]) -> None:
    assert [word for word, _ in PRE_TOKENIZERS["qwen2"]().pre_tokenize_str(text)] == words


def test_text_when_it_is_not_in_composed_form_then_is_composed(tmp_path: Path) -> None:
    metadata = tiny_vocabulary_metadata() | {"tokenizer.ggml.pre": "qwen2"}
    tokenizer = tokenizer_from_gguf(open_gguf(write_gguf(tmp_path / "tiny.gguf", metadata)))
    ids = tokenizer.encode_text("e\u0301 hello")
    assert ids == tokenizer.encode_text("\u00e9 hello")
    assert b"".join(map(tokenizer.vocabulary.token_bytes, ids)).decode() == "\u00e9 hello"
    assert tokenizer.min_ids(1000) == 0, "a text may shrink"
    assert tokenizer.encode_template("<|im_end|>") == [2]
