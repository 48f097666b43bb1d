"""Small tokenizer.json files of both kinds that are read, written out as their makers write them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kit.tiny_vocabulary import MERGES, SPECIAL_TOKENS, byte_characters

JsonObject = dict[str, object]

BYTE_SPECIAL = SPECIAL_TOKENS
SENTENCEPIECE_SPECIAL = ("<unk>", "<s>", "</s>")
SENTENCEPIECE_MERGES = ("h e", "l l", "he ll", "hell o", "▁ hello", "▁ w", "▁ ▁")


def byte_level_tokenizer(*, bos: str | None = None) -> JsonObject:
    """Special tokens 0 to 2, a token a byte, then the merges; `bos` is what its own template puts first."""
    words = [*byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    vocab = {text: place for place, text in enumerate([*BYTE_SPECIAL, *words])}
    definition = _definition(vocab, MERGES, _added(BYTE_SPECIAL), byte_fallback=False)
    definition["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level()],
    }
    definition["decoder"] = _byte_level()
    if bos is not None:
        definition["post_processor"] = _puts_first(bos, BYTE_SPECIAL.index(bos))
    return definition


def sentencepiece_tokenizer(*, is_legacy: bool, bos: str | None = None) -> JsonObject:
    """Special tokens, 256 byte tokens, a few words. `is_legacy` puts ▁ by a normalizer before every piece of text,
    otherwise a pre-tokenizer does before the first alone."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrd,."]
    words += [merge.replace(" ", "") for merge in SENTENCEPIECE_MERGES]
    vocab = {text: place for place, text in enumerate([*SENTENCEPIECE_SPECIAL, *words])}
    definition = _definition(vocab, SENTENCEPIECE_MERGES, _added(SENTENCEPIECE_SPECIAL), byte_fallback=True)
    if is_legacy:
        replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        definition["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced]}
    else:
        definition["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        }
    definition["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    if bos is not None:
        definition["post_processor"] = _puts_first(bos, SENTENCEPIECE_SPECIAL.index(bos))
    return definition


def write_json(directory: Path, files: Mapping[str, object]) -> Path:
    """Writes each value as the JSON file of its name; text as it is."""
    directory.mkdir(exist_ok=True)
    for name, held in files.items():
        text = held if isinstance(held, str) else json.dumps(held)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def _definition(
    vocab: Mapping[str, int], merges: Sequence[str], added: list[JsonObject], *, byte_fallback: bool
) -> JsonObject:
    model: JsonObject = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>" if byte_fallback else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": dict(vocab),
        "merges": list(merges),
    }
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def _added(special: Sequence[str]) -> list[JsonObject]:
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": place, "content": text, **options} for place, text in enumerate(special)]


def _byte_level() -> JsonObject:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _puts_first(text: str, token_id: int) -> JsonObject:
    named: JsonObject = {"SpecialToken": {"id": text, "type_id": 0}}
    sequence: JsonObject = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [named, sequence],
        "pair": [named, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]}},
    }
