"""Text → token ids, and how the vocabulary and merges of a GGUF file tell it."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.pre_tokenizers import PreTokenizer

from engine.executor.gguf import GgufFile
from engine.executor.model_config import UnsupportedModelError, require_str
from services.tokenization.vocabulary import Vocabulary, vocabulary_from_gguf


@dataclass(frozen=True, slots=True)
class Encoders:
    """One tokenizer in three readings."""

    plain: BpeTokenizer
    """Does not know the special tokens."""
    continued: BpeTokenizer
    """As `plain`, for a text that something stands before. Differs where the first word of a text gets a space."""
    marked: BpeTokenizer
    """Knows the special tokens by name."""


class Tokenizer:
    """Two ways to read a text: as somebody's words, or as a template that may name special tokens."""

    __slots__ = ("_encoders", "prompt_prefix_ids", "vocabulary")

    def __init__(self, vocabulary: Vocabulary, encoders: Encoders, prompt_prefix_ids: tuple[int, ...] = ()) -> None:
        """`prompt_prefix_ids` is what the model wants before a text that has nothing before it: its BOS, or nothing."""
        self.vocabulary = vocabulary
        self.prompt_prefix_ids = prompt_prefix_ids
        self._encoders = encoders

    def encode_text(self, text: str, *, is_continued: bool = False) -> list[int]:
        """`text` as ordinary words: the name of a special token in it is spelled out, never obeyed.

        `is_continued` says that the model sees something before it, if only a special token. Adds no BOS.
        """
        encoder = self._encoders.continued if is_continued else self._encoders.plain
        # Of one text a batch, since only a batch is encoded without holding the interpreter's lock.
        return list(encoder.encode_batch([text], add_special_tokens=False)[0].ids)

    def min_ids(self, num_bytes: int) -> int:
        """How many ids a text of so many bytes has at least; 0 where texts may shrink before they are encoded."""
        if self._encoders.plain.normalizer is not None:
            return 0
        return -(-num_bytes // self.vocabulary.longest_bytes)

    def encode_template(self, text: str) -> list[int]:
        """`text` with the special tokens that it names. Nothing is added at its ends."""
        return list(self._encoders.marked.encode(text, add_special_tokens=False).ids)


def byte_level_encoders(vocabulary: Vocabulary, merges: list[tuple[str, str]], split: PreTokenizer) -> Encoders:
    """`split` cuts a text into the words that are merged, spelled in the byte-level alphabet."""
    plain = _bpe(vocabulary, merges, split)
    marked = _bpe(vocabulary, merges, split)
    marked.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in vocabulary.special_tokens()]
    )
    # The texts are in the vocabulary already, so adding them must not have minted ids.
    assert marked.get_vocab_size() == len(vocabulary), "a special token got an id of its own"
    return Encoders(plain=plain, continued=plain, marked=marked)


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """Raises UnsupportedModelError for a tokenizer model or pre-tokenizer that is not known: it is never guessed."""
    model = require_str(file.metadata, "tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModelError(f"tokenizer model {model!r} is not implemented; known is 'gpt2'")
    pre = require_str(file.metadata, "tokenizer.ggml.pre")
    split = PRE_TOKENIZERS.get(pre)
    if split is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(f"pre-tokenizer {pre!r} is not implemented; known are {known}")
    vocabulary = vocabulary_from_gguf(file)
    return Tokenizer(vocabulary, byte_level_encoders(vocabulary, _merges(file), split()), _prompt_prefix(file))


def _split_smollm() -> PreTokenizer:
    """Each digit alone, then the words of GPT-2."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {"smollm": _split_smollm}
"""`tokenizer.ggml.pre` → how it cuts text."""


def _prompt_prefix(file: GgufFile) -> tuple[int, ...]:
    bos_id = file.metadata.get("tokenizer.ggml.bos_token_id")
    wants_bos = file.metadata.get("tokenizer.ggml.add_bos_token", False)
    return (bos_id,) if wants_bos and isinstance(bos_id, int) else ()


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    lines = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise UnsupportedModelError(f"{file.path.name} has no merges (tokenizer.ggml.merges)")
    merges = []
    for line in lines:
        left, space, right = str(line).partition(" ")
        if not space:
            raise UnsupportedModelError(f"{file.path.name}: merge {line!r} is not a pair")
        merges.append((left, right))
    return merges


def _bpe(vocabulary: Vocabulary, merges: list[tuple[str, str]], split: PreTokenizer) -> BpeTokenizer:
    ids = {vocabulary.text(token_id): token_id for token_id in range(len(vocabulary))}
    tokenizer = BpeTokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = split
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.added_words()])
    return tokenizer
