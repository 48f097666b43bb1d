"""Text → token ids, and how the vocabulary and merges of a GGUF file tell it."""

from collections.abc import Callable

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from engine.executor.gguf import GgufFile
from engine.executor.gguf_metadata import require_str
from engine.executor.model_config import UnsupportedModelError
from services.tokenization.encoders import Encoders, with_special_tokens
from services.tokenization.sentencepiece import sentencepiece_from_gguf
from services.tokenization.vocabulary import Vocabulary, vocabulary_from_gguf


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


def byte_level_encoders(
    vocabulary: Vocabulary, merges: list[tuple[str, str]], split: PreTokenizer, normalizer: Normalizer | None = None
) -> Encoders:
    """`split` cuts a text into the words that are merged, spelled in the byte-level alphabet; before that `normalizer`
    changes it."""
    plain = _bpe(vocabulary, merges, split, normalizer)
    marked = with_special_tokens(_bpe(vocabulary, merges, split, normalizer), vocabulary)
    return Encoders(plain=plain, continued=plain, marked=marked)


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """Raises UnsupportedModelError for a tokenizer model or pre-tokenizer that is not known: it is never guessed."""
    model = require_str(file.metadata, "tokenizer.ggml.model")
    match model:
        case "gpt2":
            vocabulary, encoders = _byte_level(file)
        case "llama":
            vocabulary, encoders = sentencepiece_from_gguf(file)
        case _:
            raise UnsupportedModelError(f"tokenizer model {model!r} is not implemented; known are 'gpt2', 'llama'")
    return Tokenizer(vocabulary, encoders, _prompt_prefix(file))


def _byte_level(file: GgufFile) -> tuple[Vocabulary, Encoders]:
    pre = require_str(file.metadata, "tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(f"pre-tokenizer {pre!r} is not implemented; known are {known}")
    vocabulary = vocabulary_from_gguf(file)
    encoders = byte_level_encoders(vocabulary, _merges(file), PRE_TOKENIZERS[pre](), NORMALIZERS.get(pre))
    return vocabulary, encoders


def _split_smollm() -> PreTokenizer:
    """Each digit alone, then the words of GPT-2."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _split_qwen2() -> PreTokenizer:
    """English endings, words with a character before them, each digit alone, what is none of these, and spaces."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {"qwen2": _split_qwen2, "smollm": _split_smollm}
"""`tokenizer.ggml.pre` → how it cuts text."""
NORMALIZERS: dict[str, Normalizer] = {"qwen2": normalizers.NFC()}
"""`tokenizer.ggml.pre` → what is done to a text before it is cut, where anything is."""


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


def _bpe(
    vocabulary: Vocabulary, merges: list[tuple[str, str]], split: PreTokenizer, normalizer: Normalizer | None
) -> BpeTokenizer:
    ids = {vocabulary.text(token_id): token_id for token_id in range(len(vocabulary))}
    tokenizer = BpeTokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = split
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.added_words()])
    return tokenizer
