"""A vocabulary of SentencePiece as a GGUF file tells it: merges by score, spaces, bytes, words that are one token."""

from pathlib import Path

import pytest

from engine.executor.gguf import open_gguf
from engine.executor.model_config import UnsupportedModelError
from engine.runtime.detokenizer import Detokenizer
from services.tokenization.chat import chat_template_from_gguf
from services.tokenization.sentencepiece import merges_from_scores
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf
from services.tokenization.vocabulary import BYTE, CONTROL, NORMAL, USER_DEFINED
from tests.kit.gguf_files import Value, write_gguf

BOS_ID, EOS_ID = 2, 1
CONTROLS = ("<pad>", "<eos>", "<bos>")
USERS = ("\n", "  ", "<td>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
PIECES = ("▁a", "ab", "bc", "▁ab", "abc", "<e", "s>", "os>", "▁", "a", "b", "c", "<", "e", "o", "s", ">")
"""The best score first."""
TOKENS = [*CONTROLS, *USERS, *BYTES, *PIECES]
METADATA: dict[str, Value] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [
        *[CONTROL] * len(CONTROLS),
        *[USER_DEFINED] * len(USERS),
        *[BYTE] * len(BYTES),
        *[NORMAL] * len(PIECES),
    ],
    "tokenizer.ggml.scores": [
        *[-1000.0] * (len(TOKENS) - len(PIECES)),
        *[-float(place) for place in range(len(PIECES))],
    ],
    "tokenizer.ggml.bos_token_id": BOS_ID,
    "tokenizer.ggml.eos_token_id": EOS_ID,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": False,
}


def read(tmp_path: Path, **changed: Value) -> Tokenizer:
    metadata = METADATA | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
    return tokenizer_from_gguf(open_gguf(write_gguf(tmp_path / "tiny.gguf", metadata)))


def spelled(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocabulary.text(token_id) for token_id in ids]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abc", ["abc"]),  # ab, then abc; bc is worse than ab
        (" abc", ["▁a", "bc"]),  # the space takes the a before ab can
        (" ab", ["▁ab"]),
        ("bca", ["bc", "a"]),
        ("ab ab", ["ab", "▁ab"]),
        ("a\nb", ["a", "\n", "b"]),
        ("a   b", ["a", "  ", "▁", "b"]),
        ("<td>", ["<td>"]),
        ("<t", ["<", "<0x74>"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("", []),
    ],
)
def test_text_when_encoded_then_the_best_score_merges_first(tmp_path: Path, text: str, tokens: list[str]) -> None:
    tokenizer = read(tmp_path)
    ids = tokenizer.encode_text(text)
    assert spelled(tokenizer, ids) == tokens
    assert b"".join(map(tokenizer.vocabulary.token_bytes, ids)) == text.encode()


def test_special_token_when_somebody_says_its_name_then_it_is_spelled_out(tmp_path: Path) -> None:
    tokenizer = read(tmp_path)
    assert spelled(tokenizer, tokenizer.encode_text("<eos>")) == ["<e", "os>"]
    assert tokenizer.encode_template("a<eos>") == [TOKENS.index("a"), EOS_ID]


def test_prompt_when_it_begins_then_the_bos_stands_before_it_only_where_the_file_says_so(tmp_path: Path) -> None:
    assert read(tmp_path).prompt_prefix_ids == (BOS_ID,)
    assert read(tmp_path, add_bos_token=False).prompt_prefix_ids == ()


def test_first_word_when_the_file_wants_a_space_before_it_then_has_one_unless_something_stands_before(
    tmp_path: Path,
) -> None:
    tokenizer = read(tmp_path, add_space_prefix=True)
    assert spelled(tokenizer, tokenizer.encode_text("ab")) == ["▁ab"]
    assert spelled(tokenizer, tokenizer.encode_text("ab", is_continued=True)) == ["ab"]
    assert spelled(tokenizer, tokenizer.encode_text("b\nab")) == ["▁", "b", "\n", "ab"]


def test_bytes_when_streamed_then_become_characters_when_whole(tmp_path: Path) -> None:
    tokenizer = read(tmp_path)
    detokenizer = Detokenizer(tokenizer.vocabulary)
    pieces = [detokenizer.push([token_id]) for token_id in [BOS_ID, *tokenizer.encode_text(" aé"), EOS_ID]]
    assert pieces == ["", " a", "", "é", ""]


def test_chat_template_when_the_file_has_none_then_there_is_none(tmp_path: Path) -> None:
    file = open_gguf(write_gguf(tmp_path / "base.gguf", METADATA))
    assert chat_template_from_gguf(file, tokenizer_from_gguf(file)) is None


def test_merges_when_derived_then_are_all_pairs_of_known_halves_by_score() -> None:
    ids = {"a": 0, "b": 1, "ab": 2, "aba": 3, "zz": 4}
    scores = [-5.0, -6.0, -9.0, -1.0, 0.0]
    assert merges_from_scores(ids, scores) == [("ab", "a"), ("a", "b")]


@pytest.mark.parametrize(
    ("key", "held", "told"),
    [
        ("scores", [0.0], r"tiny\.gguf has no score for each token"),
        ("token_type", [NORMAL] * len(TOKENS), r"no byte token <0x00> \(256 are missing\)"),
        ("remove_extra_whitespaces", True, "remove_extra_whitespaces is not implemented"),
        ("precompiled_charsmap", [1, 2], "precompiled_charsmap is not implemented"),
    ],
)
def test_tokenizer_when_the_file_tells_something_unknown_then_is_refused_by_name(
    tmp_path: Path, key: str, held: Value, told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read(tmp_path, **{key: held})
