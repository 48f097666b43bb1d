"""One tokenizer in the readings that are needed of it."""

from dataclasses import dataclass

from tokenizers import AddedToken
from tokenizers import Tokenizer as BpeTokenizer

from services.tokenization.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Encoders:
    """One tokenizer in three readings."""

    plain: BpeTokenizer
    """Does not know the special tokens."""
    continued: BpeTokenizer
    """As `plain`, for a text that something stands before. Differs where the first word of a text gets a space."""
    marked: BpeTokenizer
    """Knows the special tokens by name."""


def with_special_tokens(encoder: BpeTokenizer, vocabulary: Vocabulary) -> BpeTokenizer:
    """`encoder` itself, taught the names of the special tokens. They must be in its vocabulary already."""
    encoder.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in vocabulary.special_tokens()]
    )
    assert encoder.get_vocab_size() == len(vocabulary), "a special token got an id of its own"
    return encoder
