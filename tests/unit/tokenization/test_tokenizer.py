"""Text → ids → bytes, over a tiny vocabulary."""

from pathlib import Path

import pytest

from engine.executor.gguf import GgufFile, open_gguf
from engine.executor.model_config import UnsupportedModelError
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf
from services.tokenization.vocabulary import USER_DEFINED, Vocabulary
from tests.kit.gguf_files import Value, write_gguf
from tests.kit.tiny_vocabulary import BOS_ID, EOS_ID, tiny_vocabulary_metadata


def written(tmp_path: Path, **changed: Value) -> GgufFile:
    metadata = tiny_vocabulary_metadata()
    metadata.update({f"tokenizer.ggml.{key}": held for key, held in changed.items()})
    return open_gguf(write_gguf(tmp_path / "tiny.gguf", metadata))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return tokenizer_from_gguf(written(tmp_path))


def spelled(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    return [tokenizer.vocabulary.text(token_id) for token_id in token_ids]


def joined(tokenizer: Tokenizer, token_ids: list[int]) -> bytes:
    return b"".join(tokenizer.vocabulary.token_bytes(token_id) for token_id in token_ids)


def test_encode_text_when_merges_apply_then_uses_them(tokenizer: Tokenizer) -> None:
    assert spelled(tokenizer, tokenizer.encode_text("hello world")) == ["hello", "Ġw", "o", "r", "l", "d"]


def test_encode_text_when_digits_stand_together_then_each_is_a_token_whatever_the_merges(tokenizer: Tokenizer) -> None:
    assert spelled(tokenizer, tokenizer.encode_text("a12")) == ["a", "1", "2"]


@pytest.mark.parametrize("text", ["hello", " lead", "héllo 日本 🎉\n\t12", "\x00\x7f\u00ad\ufeff", "<|im_end|>"])
def test_token_bytes_when_joined_then_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert joined(tokenizer, tokenizer.encode_text(text)) == text.encode()
    assert joined(tokenizer, tokenizer.encode_template(text)) == text.encode()


def test_encode_text_when_it_names_a_special_token_then_spells_it_out(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("x<|im_end|>")
    assert not any(tokenizer.vocabulary.is_special(token_id) for token_id in ids)
    assert len(ids) == len("x<|im_end|>")


def test_encode_template_when_it_names_a_special_token_then_obeys_and_adds_nothing_at_the_ends(
    tokenizer: Tokenizer,
) -> None:
    assert spelled(tokenizer, tokenizer.encode_template("x<|im_end|>y")) == ["x", "<|im_end|>", "y"]


def test_special_tokens_when_told_then_are_marked_and_named(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    assert vocabulary.special_tokens() == {"<|endoftext|>": 0, "<|im_start|>": BOS_ID, "<|im_end|>": EOS_ID}
    assert vocabulary.is_special(EOS_ID)
    assert vocabulary.token_bytes(EOS_ID) == b"<|im_end|>"
    assert not vocabulary.is_special(3)


@pytest.mark.parametrize("token_id", [-1, 1000])
def test_token_bytes_when_the_id_is_outside_the_vocabulary_then_raises(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(IndexError, match="outside the vocabulary"):
        tokenizer.vocabulary.token_bytes(token_id)


def test_prompt_prefix_when_the_model_wants_a_bos_then_is_it(tmp_path: Path) -> None:
    assert tokenizer_from_gguf(written(tmp_path)).prompt_prefix_ids == ()
    assert tokenizer_from_gguf(written(tmp_path, add_bos_token=True)).prompt_prefix_ids == (BOS_ID,)
    assert tokenizer_from_gguf(written(tmp_path, add_bos_token=False)).prompt_prefix_ids == ()


@pytest.mark.parametrize(
    ("key", "held", "told"),
    [
        ("model", "bert", "tokenizer model 'bert' is not implemented; known are 'gpt2', 'llama'"),
        ("pre", "viking", "pre-tokenizer 'viking' is not implemented; known are qwen2, smollm"),
        ("merges", ["ab"], "merge 'ab' is not a pair"),
        ("merges", "a b", "no merges"),
        ("tokens", "a b", "no vocabulary"),
        ("token_type", [1, 1], "tokens with 2 types"),
    ],
)
def test_tokenizer_when_the_file_says_something_unknown_then_is_refused_by_name(
    tmp_path: Path, key: str, held: Value, told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        tokenizer_from_gguf(written(tmp_path, **{key: held}))


def test_vocabulary_when_a_token_is_not_in_the_byte_alphabet_then_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="byte-level alphabet"):
        Vocabulary(["日"], [1])


def test_vocabulary_when_a_word_is_added_by_the_user_then_it_is_text_and_always_one_token(tmp_path: Path) -> None:
    metadata = tiny_vocabulary_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    file = written(tmp_path, tokens=[*tokens, "  \n"], token_type=[*types, USER_DEFINED])
    tokenizer = tokenizer_from_gguf(file)
    ids = tokenizer.encode_text("x  \ny")
    assert spelled(tokenizer, ids) == ["x", "  \n", "y"]
    assert joined(tokenizer, ids) == b"x  \ny"
    assert not tokenizer.vocabulary.is_special(ids[1])
