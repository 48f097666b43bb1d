"""The bytes and the kind of each token of a vocabulary."""

import re
from collections.abc import Callable, Sequence

from engine.executor.gguf import GgufFile
from engine.executor.model_config import UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type`."""
_SPECIAL = (UNKNOWN, CONTROL)
_SPELLED_AS_TEXT = (UNKNOWN, CONTROL, USER_DEFINED, UNUSED)


class Vocabulary:
    """Token id → bytes. A sequence is their concatenation, which is text only where it is whole UTF-8."""

    __slots__ = ("_bytes", "_kinds", "_texts", "longest_bytes")

    def __init__(self, texts: Sequence[str], types: Sequence[int], read: Callable[[str], bytes] | None = None) -> None:
        """`types` as in a GGUF file. `read` gives the bytes of a token that is not spelled as it is, such as a special
        one: None reads the byte-level alphabet."""
        if len(texts) != len(types):
            raise UnsupportedModelError(f"{len(texts)} tokens with {len(types)} types")
        read = read or read_byte_level
        self._texts = tuple(texts)
        self._kinds = tuple(types)
        self._bytes = tuple(
            text.encode() if kind in _SPELLED_AS_TEXT else read(text) for text, kind in zip(texts, types, strict=True)
        )
        self.longest_bytes = max(map(len, self._bytes), default=1)
        """Bytes of the longest token."""

    def __len__(self) -> int:
        return len(self._texts)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text; of a special token its own name. Raises IndexError outside the vocabulary."""
        return self._bytes[_checked(token_id, len(self._bytes))]

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark, such as the end of a turn, and no part of what was said."""
        return self._kinds[_checked(token_id, len(self._bytes))] in _SPECIAL

    def text(self, token_id: int) -> str:
        """The token as the file spells it."""
        return self._texts[_checked(token_id, len(self._bytes))]

    def special_tokens(self) -> dict[str, int]:
        """Text → id of every special token."""
        return {text: token_id for token_id, text in enumerate(self._texts) if self._kinds[token_id] in _SPECIAL}

    def ids_of(self, kind: int) -> dict[str, int]:
        """Text → id of every token of this kind."""
        return {text: token_id for token_id, text in enumerate(self._texts) if self._kinds[token_id] == kind}

    def added_words(self) -> tuple[str, ...]:
        """Ordinary text that is always one token, wherever it stands."""
        return tuple(text for text, kind in zip(self._texts, self._kinds, strict=True) if kind == USER_DEFINED)


def vocabulary_from_gguf(file: GgufFile, read: Callable[[str], bytes] | None = None) -> Vocabulary:
    """`read` as in Vocabulary. Raises UnsupportedModelError when the file has no vocabulary."""
    texts = file.metadata.get("tokenizer.ggml.tokens")
    types = file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(texts, list) or not isinstance(types, list):
        raise UnsupportedModelError(f"{file.path.name} has no vocabulary (tokenizer.ggml.tokens and token_type)")
    return Vocabulary([str(text) for text in texts], [int(kind) for kind in types], read)


def byte_alphabet() -> dict[int, str]:
    """Byte → the printable character that stands for it in byte-level BPE.

    Bytes that print in Latin-1 stand for themselves; the others take the characters from U+0100 on, in order.
    """
    alphabet: dict[int, str] = {}
    for byte in range(256):
        prints = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF
        alphabet[byte] = chr(byte) if prints else ""
    replacements = iter(range(0x100, 0x200))
    return {byte: character or chr(next(replacements)) for byte, character in alphabet.items()}


def read_byte_level(text: str) -> bytes:
    """The bytes of a token in the byte-level alphabet. Raises UnsupportedModelError."""
    try:
        return bytes(_BYTE_OF[character] for character in text)
    except KeyError as error:
        raise UnsupportedModelError(f"token {text!r} is not spelled in the byte-level alphabet") from error


def read_sentencepiece(text: str) -> bytes:
    """The bytes of a token as SentencePiece spells it: ▁ is a space, <0x0A> a byte."""
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()


_BYTE_OF = {character: byte for byte, character in byte_alphabet().items()}
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def _checked(token_id: int, size: int) -> int:
    if not 0 <= token_id < size:
        raise IndexError(f"token id outside the vocabulary of {size}")
    return token_id
