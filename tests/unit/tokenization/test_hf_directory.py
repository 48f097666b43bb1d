"""Tokenizers and chat templates of Hugging Face directories: what is read, and what is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as BpeTokenizer

from engine.executor.hf_files import HfFileError
from engine.executor.model_config import UnsupportedModelError
from services.tokenization.chat import ChatMessage, ChatTemplateError
from services.tokenization.hf_directory import chat_template_from_hf, tokenizer_from_hf
from services.tokenization.tokenizer import Tokenizer
from tests.kit.tiny_tokenizer_json import JsonObject, byte_level_tokenizer, sentencepiece_tokenizer, write_json
from tests.kit.tiny_vocabulary import CHATML, EOS_ID

VOCAB_SIZE = 300
TEXTS = ["hello world", " hello", "  hello  12", "héllo 日本 🎉\n\t", "", " ", "hello</s><|im_end|>", "\u0301e\u00ad"]
MARKED = [
    pytest.param(byte_level_tokenizer, "<|im_end|>", id="byte-level"),
    pytest.param(lambda: sentencepiece_tokenizer(is_legacy=True), "</s>", id="sentencepiece, legacy"),
    pytest.param(lambda: sentencepiece_tokenizer(is_legacy=False), "</s>", id="sentencepiece, first"),
]


def read(tmp_path: Path, definition: object, config: JsonObject | None = None) -> Tokenizer:
    files = {"tokenizer.json": definition, **({} if config is None else {"tokenizer_config.json": config})}
    return tokenizer_from_hf(write_json(tmp_path / "model", files), VOCAB_SIZE)


def own_encoder(definition: JsonObject) -> BpeTokenizer:
    """The library's own reading of the definition, without what it adds or cuts."""
    return BpeTokenizer.from_str(json.dumps({**definition, "truncation": None, "post_processor": None}))


def joined(tokenizer: Tokenizer, token_ids: list[int]) -> bytes:
    return b"".join(tokenizer.vocabulary.token_bytes(token_id) for token_id in token_ids)


@pytest.mark.parametrize(("make", "mark"), MARKED)
def test_ids_when_a_text_names_no_special_token_then_are_the_librarys(
    tmp_path: Path, make: Callable[[], JsonObject], mark: str
) -> None:
    tokenizer, own = read(tmp_path, make()), own_encoder(make())
    plain = [text for text in TEXTS if mark not in text]
    assert len(plain) < len(TEXTS)
    for text in plain:
        assert tokenizer.encode_text(text) == own.encode(text).ids
    for text in TEXTS:
        assert tokenizer.encode_template(text) == own.encode(text).ids


@pytest.mark.parametrize(("make", "mark"), MARKED)
def test_encode_text_when_it_names_a_special_token_then_spells_it_out(
    tmp_path: Path, make: Callable[[], JsonObject], mark: str
) -> None:
    tokenizer = read(tmp_path, make())
    for text in (mark, f"x{mark}", f"{mark} {mark}"):
        for is_continued in (False, True):
            ids = tokenizer.encode_text(text, is_continued=is_continued)
            assert not any(tokenizer.vocabulary.is_special(token_id) for token_id in ids)
            assert joined(tokenizer, ids).decode().removeprefix(" ") == text
    special = [token_id for token_id in tokenizer.encode_template(mark) if tokenizer.vocabulary.is_special(token_id)]
    assert [tokenizer.vocabulary.text(token_id) for token_id in special] == [mark]


@pytest.mark.parametrize("text", TEXTS)
def test_token_bytes_when_byte_level_then_join_to_the_text(tmp_path: Path, text: str) -> None:
    tokenizer = read(tmp_path, byte_level_tokenizer())
    assert joined(tokenizer, tokenizer.encode_text(text)) == text.encode()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_legacy", [True, False])
def test_token_bytes_when_sentencepiece_then_join_to_the_text_behind_the_space_it_begins_with(
    tmp_path: Path, text: str, is_legacy: bool
) -> None:
    tokenizer = read(tmp_path, sentencepiece_tokenizer(is_legacy=is_legacy))
    first = joined(tokenizer, tokenizer.encode_text(text)).decode()
    assert first in (f" {text}", text)
    continued = joined(tokenizer, tokenizer.encode_text(text, is_continued=True)).decode()
    assert continued == (first if is_legacy else text)


def test_token_bytes_when_a_sentencepiece_token_is_a_byte_then_is_that_byte(tmp_path: Path) -> None:
    vocabulary = read(tmp_path, sentencepiece_tokenizer(is_legacy=True)).vocabulary
    assert [vocabulary.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_vocabulary_when_the_model_has_room_for_more_tokens_then_the_rest_say_nothing(tmp_path: Path) -> None:
    vocabulary = read(tmp_path, byte_level_tokenizer()).vocabulary
    assert len(vocabulary) == VOCAB_SIZE
    assert vocabulary.token_bytes(VOCAB_SIZE - 1) == b""
    assert not vocabulary.is_special(VOCAB_SIZE - 1)
    assert vocabulary.special_tokens() == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}


@pytest.mark.parametrize(
    ("config", "bos", "expected"),
    [
        (None, None, ()),
        (None, "<|im_start|>", (1,)),
        ({"add_bos_token": False, "bos_token": "<|im_start|>"}, "<|im_start|>", ()),
        ({"add_bos_token": True, "bos_token": "<|endoftext|>"}, None, (0,)),
        ({"add_bos_token": True, "bos_token": {"content": "<|im_start|>"}}, None, (1,)),
        ({"bos_token": "<|im_start|>"}, None, ()),
    ],
)
def test_prompt_prefix_when_read_then_is_a_bos_only_where_the_model_says_so(
    tmp_path: Path, config: JsonObject | None, bos: str | None, expected: tuple[int, ...]
) -> None:
    tokenizer = read(tmp_path, byte_level_tokenizer(bos=bos), config)
    assert tokenizer.prompt_prefix_ids == expected
    assert tokenizer.encode_text("hello")[:1] != list(expected)


def test_prompt_prefix_when_sentencepiece_then_is_its_bos(tmp_path: Path) -> None:
    definition = sentencepiece_tokenizer(is_legacy=True, bos="<s>")
    assert read(tmp_path, definition).prompt_prefix_ids == (1,)


def test_added_word_when_it_is_not_special_then_is_one_token_of_its_text(tmp_path: Path) -> None:
    definition = byte_level_tokenizer()
    added = definition["added_tokens"]
    assert isinstance(added, list)
    added.append({**added[0], "id": 280, "content": "<think>", "special": False})
    tokenizer = read(tmp_path, definition)
    ids = tokenizer.encode_text("a<think>")
    assert ids == tokenizer.encode_template("a<think>")
    assert ids[-1] == 280
    assert joined(tokenizer, ids) == b"a<think>"
    assert not tokenizer.vocabulary.is_special(280)


def test_special_token_when_the_vocabulary_would_give_it_to_a_whole_word_then_does_not(tmp_path: Path) -> None:
    definition = byte_level_tokenizer()
    model = definition["model"]
    assert isinstance(model, dict)
    definition["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    model["ignore_merges"] = True
    model["vocab"]["<|im_end|>"] = EOS_ID
    tokenizer = read(tmp_path, definition)
    assert EOS_ID not in tokenizer.encode_text("<|im_end|>")


@pytest.mark.parametrize(
    ("key", "changed", "told"),
    [
        ("type", "Unigram", "model type 'Unigram' is not implemented; known is 'BPE'"),
        ("type", "WordPiece", "model type 'WordPiece'"),
        ("byte_fallback", False, "no byte fallback is not implemented"),
    ],
)
def test_tokenizer_when_of_another_kind_then_is_refused_by_name(
    tmp_path: Path, key: str, changed: object, told: str
) -> None:
    definition = sentencepiece_tokenizer(is_legacy=True)
    model = definition["model"]
    assert isinstance(model, dict)
    model[key] = changed
    with pytest.raises(UnsupportedModelError, match=told):
        read(tmp_path, definition)


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "does not hold an object"),
        ({}, "has no model"),
        ({"model": {"type": "BPE", "vocab": [], "merges": []}}, "vocab is not an object of ids"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "vocab is not an object of ids"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a a"]}}, "merge 'a a' is not of two tokens"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [["a"]]}}, "is not of two tokens"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [{"id": 1}]}, "no id or no content"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}, "added_tokens": [{"id": 1, "content": "b"}]},
            "added token 'b' has id 1, the vocabulary says otherwise",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}, "added_tokens": [{"id": 2, "content": "a"}]},
            "added token 'a' has id 2, the vocabulary says otherwise",
        ),
    ],
)
def test_tokenizer_when_the_file_is_broken_then_is_refused(tmp_path: Path, definition: object, told: str) -> None:
    with pytest.raises(HfFileError, match=told):
        read(tmp_path, definition)


def test_tokenizer_when_it_has_more_tokens_than_the_model_then_is_refused(tmp_path: Path) -> None:
    directory = write_json(tmp_path / "model", {"tokenizer.json": byte_level_tokenizer()})
    with pytest.raises(UnsupportedModelError, match=r"has token 265; the model's vocabulary ends at 265"):
        tokenizer_from_hf(directory, 265)
    assert len(tokenizer_from_hf(directory, 266).vocabulary) == 266


def test_tokenizer_when_there_is_only_a_sentencepiece_model_then_says_that_it_is_not_read(tmp_path: Path) -> None:
    directory = write_json(tmp_path / "model", {"tokenizer.model": "x"})
    with pytest.raises(HfFileError, match=r"no tokenizer\.json, only tokenizer\.model"):
        tokenizer_from_hf(directory, VOCAB_SIZE)


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": CHATML},
        {"tokenizer_config.json": {"chat_template": CHATML}},
        {
            "tokenizer_config.json": {
                "chat_template": [{"name": "x", "template": ""}, {"name": "default", "template": CHATML}]
            }
        },
        {"chat_template.jinja": CHATML, "tokenizer_config.json": {"chat_template": "{{ 'not this one' }}"}},
    ],
    ids=["file", "configuration", "several", "file first"],
)
def test_chat_template_when_told_in_any_place_then_is_that_one(tmp_path: Path, files: JsonObject) -> None:
    tokenizer = read(tmp_path, byte_level_tokenizer())
    template = chat_template_from_hf(write_json(tmp_path / "model", files), tokenizer)
    assert template is not None
    expected = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert template.first_turn_ids([ChatMessage("user", "hello")]) == tokenizer.encode_template(expected)


def test_chat_template_when_there_is_none_then_is_none_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, byte_level_tokenizer())
    assert chat_template_from_hf(tmp_path / "model", tokenizer) is None
    write_json(tmp_path / "model", {"chat_template.jinja": "{% for %}"})
    with pytest.raises(ChatTemplateError, match="not valid"):
        chat_template_from_hf(tmp_path / "model", tokenizer)


@pytest.mark.parametrize("is_legacy", [True, False])
def test_chat_template_when_sentencepiece_then_gives_the_ids_of_the_whole_rendered_text(
    tmp_path: Path, is_legacy: bool
) -> None:
    definition = sentencepiece_tokenizer(is_legacy=is_legacy)
    tokenizer = read(tmp_path, definition, {"bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    source = "{{ bos_token }}{% for m in messages %}{{ m.role + ' ' + m.content + eos_token }}{% endfor %}"
    template = chat_template_from_hf(write_json(tmp_path / "model", {"chat_template.jinja": source}), tokenizer)
    assert template is not None
    rendered = "<s>user hello</s>assistant hello world</s>"
    told = [ChatMessage("user", "hello"), ChatMessage("assistant", "hello world")]
    assert template.first_turn_ids(told) == own_encoder(definition).encode(rendered).ids
