"""Tokenizer and chat template of a Hugging Face directory.

Two kinds of tokenizer.json are known, both BPE: byte-level ones, whose tokens are spelled in the byte-level alphabet,
and those converted from SentencePiece, with ▁ for a space and a token for each byte that no other token covers.
"""

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as BpeTokenizer

from engine.executor.hf_files import HfFileError, JsonObject, read_json, read_json_if_there, read_text
from engine.executor.model_config import UnsupportedModelError
from services.tokenization.chat import ChatTemplate
from services.tokenization.encoders import Encoders
from services.tokenization.tokenizer import Tokenizer
from services.tokenization.vocabulary import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    read_byte_level,
    read_sentencepiece,
)

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"

_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_SENTENCEPIECE_MODELS = ("tokenizer.model",)
_LEGACY_MERGE = re.compile(r"[^ ]+ [^ ]+")


@dataclass(frozen=True, slots=True)
class _Added:
    """A token that stands beside the vocabulary of the merges."""

    token_id: int
    text: str
    is_special: bool


def tokenizer_from_hf(directory: Path, vocab_size: int) -> Tokenizer:
    """Raises UnsupportedModelError for a kind of tokenizer that is not known, HfFileError for a file that is missing or
    broken. `vocab_size` is the model's, which may have room for more tokens than there are."""
    if not (directory / TOKENIZER_FILE).exists():
        others = [name for name in _SENTENCEPIECE_MODELS if (directory / name).exists()]
        instead = f", only {others[0]}, which is not read" if others else ""
        raise HfFileError(f"{directory.name} has no {TOKENIZER_FILE}{instead}")
    definition = read_json(directory / TOKENIZER_FILE)
    model = _checked_model(definition)
    added = _added_tokens(definition, model)
    read = _reader(definition, model)
    whole = {**definition, "truncation": None, "padding": None}
    special = {token.text for token in added if token.is_special}
    encoders = _encoders(
        plain={**_with_words(whole, model, added, special), "post_processor": None},
        marked=_with_words(whole, model, added, set()),
    )
    vocabulary = _vocabulary(encoders.marked, added, read, vocab_size)
    prefix = _prompt_prefix(read_json_if_there(directory / TOKENIZER_CONFIG_FILE), encoders.marked)
    return Tokenizer(vocabulary, encoders, prefix)


def chat_template_from_hf(directory: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The directory's template, or None where it has none. Raises ChatTemplateError when it is not valid."""
    config = read_json_if_there(directory / TOKENIZER_CONFIG_FILE)
    path = directory / TEMPLATE_FILE
    source = read_text(path) if path.exists() else _template_in(config)
    if source is None:
        return None
    return ChatTemplate(source, tokenizer, {name: _token_text(config, name) or "" for name in _TEMPLATE_VARIABLES})


def _template_in(config: JsonObject) -> str | None:
    """One template, or the one called default of several."""
    held = config.get("chat_template")
    if isinstance(held, list):
        named = {str(entry.get("name")): entry.get("template") for entry in held if isinstance(entry, dict)}
        held = named.get("default")
    return held if isinstance(held, str) else None


def _token_text(config: JsonObject, name: str) -> str | None:
    held = config.get(name)
    text = held.get("content") if isinstance(held, dict) else held
    return text if isinstance(text, str) else None


def _checked_model(definition: JsonObject) -> JsonObject:
    model = definition.get("model")
    if not isinstance(model, dict):
        raise HfFileError(f"{TOKENIZER_FILE} has no model")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise UnsupportedModelError(f"{TOKENIZER_FILE}: model type {kind!r} is not implemented; known is 'BPE'")
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not all(type(token_id) is int and token_id >= 0 for token_id in vocab.values()):
        raise HfFileError(f"{TOKENIZER_FILE}: the model's vocab is not an object of ids")
    if not isinstance(merges, list):
        raise HfFileError(f"{TOKENIZER_FILE}: the model's merges are not a list")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) and _LEGACY_MERGE.fullmatch(merge) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            raise HfFileError(f"{TOKENIZER_FILE}: merge {merge!r} is not of two tokens that make a third")
    return model


def _added_tokens(definition: JsonObject, model: JsonObject) -> list[_Added]:
    held, vocab = definition.get("added_tokens") or [], model["vocab"]
    assert isinstance(vocab, dict), "a model that was checked"
    text_of = {token_id: text for text, token_id in vocab.items()}
    added = []
    for entry in held if isinstance(held, list) else [held]:
        entry = entry if isinstance(entry, dict) else {}
        token_id, text = entry.get("id"), entry.get("content")
        if type(token_id) is not int or token_id < 0 or not isinstance(text, str) or not text:
            raise HfFileError(f"{TOKENIZER_FILE}: added token {text!r} of id {token_id!r} has no id or no content")
        if text_of.setdefault(token_id, text) != text or vocab.get(text, token_id) != token_id:
            raise HfFileError(
                f"{TOKENIZER_FILE}: added token {text!r} has id {token_id}, the vocabulary says otherwise"
            )
        added.append(_Added(token_id, text, entry.get("special") is True))
    return added


def _reader(definition: JsonObject, model: JsonObject) -> Callable[[str], bytes]:
    """How a token's text becomes bytes. Raises UnsupportedModelError when the tokenizer is of neither known kind."""
    cuts = set(_types(definition.get("pre_tokenizer")))
    decodes = set(_types(definition.get("decoder")))
    if "ByteLevel" in cuts:
        return read_byte_level
    if model.get("byte_fallback") is True and "ByteFallback" in decodes:
        return read_sentencepiece
    shown = ", ".join(sorted(cuts)) or "none"
    raise UnsupportedModelError(
        f"{TOKENIZER_FILE}: a BPE with pre-tokenizer {shown} and no byte fallback is not implemented; "
        "known are ByteLevel, and SentencePiece with byte_fallback"
    )


def _types(part: object) -> Iterator[str]:
    """The types of a pre-tokenizer or decoder and of all that it is a sequence of."""
    if isinstance(part, list):
        for inner in part:
            yield from _types(inner)
    elif isinstance(part, dict):
        yield str(part.get("type"))
        yield from _types(part.get("pretokenizers"))
        yield from _types(part.get("decoders"))


def _with_words(definition: JsonObject, model: JsonObject, added: list[_Added], hidden: set[str]) -> JsonObject:
    """The definition with all added tokens but the `hidden` ones.

    They join the vocabulary too: the library numbers those that are not in it anew, in the order in which they come.
    """
    vocab = model["vocab"]
    assert isinstance(vocab, dict), "a model that was checked"
    shown = {token.text: token.token_id for token in added if token.text not in hidden}
    # A vocabulary that holds a hidden token could give it to a text that is one word; some can't do without.
    needed = {model.get("unk_token"), *_merged(model)} if hidden else set()
    words = {text: token_id for text, token_id in vocab.items() if text not in hidden or text in needed}
    entries = definition.get("added_tokens")
    kept = [entry for entry in entries if entry["content"] in shown] if isinstance(entries, list) else []
    return {**definition, "added_tokens": kept, "model": {**model, "dropout": None, "vocab": {**words, **shown}}}


def _merged(model: JsonObject) -> set[str]:
    """Every token that a merge speaks of: a vocabulary without it is not valid."""
    merges = model["merges"]
    assert isinstance(merges, list), "a model that was checked"
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    return {text for left, right in pairs for text in (left, right, left + right)}


def _continued(definition: JsonObject) -> JsonObject:
    """The definition for a text that does not stand first: where only the first word gets a space, none does."""

    def without_first(part: object) -> object:
        if isinstance(part, list):
            return [without_first(inner) for inner in part]
        if isinstance(part, dict):
            changed = {key: without_first(value) for key, value in part.items()}
            return {**changed, "prepend_scheme": "never"} if part.get("prepend_scheme") == "first" else changed
        return deepcopy(part)

    return {**definition, "pre_tokenizer": without_first(definition.get("pre_tokenizer"))}


def _encoders(plain: JsonObject, marked: JsonObject) -> Encoders:
    encoder, continued = _built(plain), _continued(plain)
    # Large ones take a second each.
    return Encoders(encoder, encoder if continued == plain else _built(continued), _built(marked))


def _built(definition: JsonObject) -> BpeTokenizer:
    return BpeTokenizer.from_str(json.dumps(definition))


def _vocabulary(
    encoder: BpeTokenizer, added: list[_Added], read: Callable[[str], bytes], vocab_size: int
) -> Vocabulary:
    """All ids of the model; those that no token has say nothing."""
    texts, kinds = [""] * vocab_size, [UNUSED] * vocab_size
    held = encoder.get_vocab(with_added_tokens=True)
    highest = max(held.values(), default=-1)
    if highest >= vocab_size:
        raise UnsupportedModelError(
            f"{TOKENIZER_FILE} has token {highest}; the model's vocabulary ends at {vocab_size}"
        )
    for text, token_id in held.items():
        texts[token_id], kinds[token_id] = text, NORMAL
    for token in added:
        # SentencePiece spells the words that were added to it in its own way too.
        as_it_is = USER_DEFINED if read is read_byte_level else NORMAL
        kinds[token.token_id] = CONTROL if token.is_special else as_it_is
    return Vocabulary(texts, kinds, read)


def _prompt_prefix(config: JsonObject, encoder: BpeTokenizer) -> tuple[int, ...]:
    """The BOS where `add_bos_token` says so; where nothing is said, what the tokenizer's own template puts first."""
    wants_bos = config.get("add_bos_token")
    if isinstance(wants_bos, bool):
        text = _token_text(config, "bos_token")
        token_id = None if text is None else encoder.token_to_id(text)
        if wants_bos and token_id is None:
            raise UnsupportedModelError(f"{TOKENIZER_CONFIG_FILE} wants a BOS and names none that is in the vocabulary")
        return (token_id,) if wants_bos and token_id is not None else ()
    word = "a"
    plain_ids = encoder.encode(word, add_special_tokens=False).ids
    full_ids = encoder.encode(word).ids
    starts = [place for place in range(len(full_ids)) if full_ids[place : place + len(plain_ids)] == plain_ids]
    return tuple(full_ids[: starts[0]]) if starts else ()
