"""SentencePiece's BPE as a GGUF file tells it: tokens with scores, and no merges.

There, the two neighbours are merged whose joined token has the highest score. Here that order is told as a list of
merges, so that the library can follow it. Deriving it takes a second for a quarter of a million tokens, so it is done
anew at each start.
"""

from collections.abc import Sequence
from typing import Literal

from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer

from engine.executor.gguf import GgufFile
from engine.executor.model_config import UnsupportedModelError
from services.tokenization.encoders import Encoders, with_special_tokens
from services.tokenization.vocabulary import BYTE, NORMAL, Vocabulary, read_sentencepiece, vocabulary_from_gguf

SPACE = "▁"
"""How a space is spelled in a token."""
_REFUSED_OPTIONS = ("tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.precompiled_charsmap")
"""What would change a text before it is cut into tokens."""


def sentencepiece_from_gguf(file: GgufFile) -> tuple[Vocabulary, Encoders]:
    """Raises UnsupportedModelError for a file without scores, without a token for each byte, or with an option that is
    not implemented."""
    for key in _REFUSED_OPTIONS:
        if file.metadata.get(key):
            raise UnsupportedModelError(f"{file.path.name}: {key} is not implemented")
    scores = file.metadata.get("tokenizer.ggml.scores")
    vocabulary = vocabulary_from_gguf(file, read_sentencepiece)
    if not isinstance(scores, list) or len(scores) != len(vocabulary):
        raise UnsupportedModelError(f"{file.path.name} has no score for each token (tokenizer.ggml.scores)")
    has_prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    return vocabulary, sentencepiece_encoders(vocabulary, [float(score) for score in scores], has_prefix=has_prefix)


def sentencepiece_encoders(vocabulary: Vocabulary, scores: Sequence[float], *, has_prefix: bool) -> Encoders:
    """`has_prefix` says whether a text is read as if it began with a space. Raises UnsupportedModelError."""
    byte_ids = vocabulary.ids_of(BYTE)
    lacking = [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in byte_ids]
    if lacking:
        raise UnsupportedModelError(f"the vocabulary has no byte token {lacking[0]} ({len(lacking)} are missing)")
    ids = {vocabulary.text(token_id): token_id for token_id in range(len(vocabulary))}
    merges = merges_from_scores(vocabulary.ids_of(NORMAL), scores)
    model = models.BPE(vocab=ids, merges=merges, byte_fallback=True)
    words = [AddedToken(text, normalized=False) for text in vocabulary.added_words()]

    def build(prepend: Literal["first", "never"]) -> BpeTokenizer:
        tokenizer = BpeTokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend, split=False)
        tokenizer.add_tokens(words)
        return tokenizer

    continued = build("never")
    plain = build("first") if has_prefix else continued
    return Encoders(plain, continued, with_special_tokens(build("first" if has_prefix else "never"), vocabulary))


def merges_from_scores(ids: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that make a third, the highest score of the third first. `ids` has those that merge, text →
    id; `scores` are by id.

    Pairs that make the same token come in the order of their first halves' lengths. Which of them comes first matters
    to no text: both can not lie at the same place.
    """
    by_score = sorted(ids.items(), key=lambda entry: -scores[entry[1]])
    return [
        (left, right)
        for text, _ in by_score
        for cut in range(1, len(text))
        if (left := text[:cut]) in ids and (right := text[cut:]) in ids
    ]
