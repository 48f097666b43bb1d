"""Chat messages → token ids, through the model's own template.

What a client says is never obeyed as a mark: a special token is taken from the template's text only. The template is
rendered with the special tokens' names in the contents disguised by a character that occurs nowhere else. The rendered
text is then cut at the names that are left, which are the template's, and what lies between is undisguised and encoded
as ordinary text, contents and template together, so that words merge across their edge as they would in one text.

    rendered:   <|im_start|>user\\nsay ⧗|im_end|> twice<|im_end|>\\n
    cut:        [ <|im_start|> ] [ user\\nsay <|im_end|> twice ] [ <|im_end|> ] [ \\n ]
                     one id            ordinary text               one id     ordinary text
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.executor.gguf import GgufFile
from services.tokenization.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")
PRIVATE_USE = range(0xE000, 0xF900)
"""Characters without a meaning in Unicode: disguises and the sentinel are taken from those that no message uses."""


class ChatTemplateError(Exception):
    """These messages can't be put into this template: the message says why."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """What the template makes of messages, before the seconds that encoding a long one takes."""

    pieces: tuple[str | int, ...]
    """The ids of the template's special tokens, and the words between them."""
    is_continued: bool
    """Whether the model sees something before it."""


class ChatTemplate:
    """One model's template together with its tokenizer."""

    __slots__ = ("_source", "_special_ids", "_special_pattern", "_template", "_tokenizer", "_variables")

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        variables: dict[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`variables` are names that the template may use, such as `bos_token`. Raises ChatTemplateError."""
        self._source = source
        self._tokenizer = tokenizer
        self._variables = variables
        self._special_ids = tokenizer.vocabulary.special_tokens()
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"the model's chat template is not valid: {error}") from error

    def first_turn_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The ids of a conversation that starts with `messages`, up to where the assistant begins to speak."""
        return self.encode(self.render_first_turn(messages))

    def append_turn_ids(self, messages: Sequence[ChatMessage], history_tail_id: int | None) -> list[int]:
        """The ids that continue a history that ends with the assistant's words, its last id being `history_tail_id`.

        That is the template's text behind an assistant's content, then `messages`. A closing token that the history
        already ends with is dropped; one that is missing, because the turn was cut, is supplied.
        Raises ChatTemplateError when the template does not show the assistant's content exactly once.
        """
        return self.encode(self.render_next_turn(messages, history_tail_id))

    def render_first_turn(self, messages: Sequence[ChatMessage]) -> RenderedTurn:
        """What `first_turn_ids` encodes. Raises ChatTemplateError."""
        _check(messages)
        disguise = self._disguise(messages)
        return RenderedTurn(self._cut(self._render(messages, disguise), disguise), is_continued=False)

    def render_next_turn(self, messages: Sequence[ChatMessage], history_tail_id: int | None) -> RenderedTurn:
        """What `append_turn_ids` encodes. Raises ChatTemplateError."""
        _check(messages)
        disguise = self._disguise(messages)
        rendered = self._render_stub(messages, disguise)
        shown = rendered.count(disguise.sentinel)
        if shown != 1:
            raise ChatTemplateError(f"the model's chat template shows an assistant's content {shown} times, not once")
        pieces = self._cut(rendered.partition(disguise.sentinel)[2], disguise)
        closes_twice = pieces[:1] == (history_tail_id,)
        return RenderedTurn(pieces[1:] if closes_twice else pieces, is_continued=True)

    def encode(self, rendered: RenderedTurn) -> list[int]:
        """The ids of a turn."""
        ids: list[int] = []
        for number, piece in enumerate(rendered.pieces):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._tokenizer.encode_text(piece, is_continued=rendered.is_continued or number > 0)
        return ids

    def min_ids(self, rendered: RenderedTurn) -> int:
        """How many ids a turn has at least, as `Tokenizer.min_ids`."""
        return sum(
            1 if isinstance(piece, int) else self._tokenizer.min_ids(len(piece.encode())) for piece in rendered.pieces
        )

    def _render_stub(self, messages: Sequence[ChatMessage], disguise: "_Disguise") -> str:
        """A conversation whose last answer is the sentinel. Without a system message where the template refuses one."""
        spoken = [ChatMessage("user", "x"), ChatMessage("assistant", disguise.sentinel), *messages]
        try:
            return self._render([ChatMessage("system", "x"), *spoken], disguise)
        except ChatTemplateError:
            return self._render(spoken, disguise)

    def _render(self, messages: Iterable[ChatMessage], disguise: "_Disguise") -> str:
        shown = [{"role": message.role, "content": disguise.hide(message.content)} for message in messages]
        try:
            return self._template.render(messages=shown, add_generation_prompt=True, **self._variables)
        except TemplateError as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error

    def _cut(self, rendered: str, disguise: "_Disguise") -> tuple[str | int, ...]:
        """The special tokens that are left as ids, and what lies between as it was said. No piece is empty."""
        pieces: list[str | int] = []
        start = 0
        for mark in self._special_pattern.finditer(rendered):
            pieces += (disguise.reveal(rendered[start : mark.start()]), self._special_ids[mark.group()])
            start = mark.end()
        pieces.append(disguise.reveal(rendered[start:]))
        return tuple(piece for piece in pieces if piece != "")

    def _disguise(self, messages: Sequence[ChatMessage]) -> "_Disguise":
        used = set(self._source).union(*(message.content for message in messages))
        first_characters = sorted({text[0] for text in self._special_ids})
        unused = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        chosen = [character for character, _ in zip(unused, range(len(first_characters) + 1), strict=False)]
        if len(chosen) <= len(first_characters):
            raise ChatTemplateError("the messages use every private-use character of Unicode")
        return _Disguise(self._special_pattern, dict(zip(first_characters, chosen[1:], strict=True)), chosen[0])


def chat_template_from_gguf(file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The file's template, or None where it has none. Raises ChatTemplateError when it is not valid."""
    source = file.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    variables = {}
    for name in ("bos", "eos"):
        token_id = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        variables[f"{name}_token"] = tokenizer.vocabulary.text(token_id) if isinstance(token_id, int) else ""
    return ChatTemplate(source, tokenizer, variables)


@dataclass(frozen=True, slots=True)
class _Disguise:
    """Replaces the first character of each special token's name, so that the name is not found in a content."""

    special_pattern: re.Pattern[str]
    stand_ins: dict[str, str]
    """First character of a name → the character that stands in for it."""
    sentinel: str

    def hide(self, text: str) -> str:
        # Until none is left: a name may overlap the tail of one that was just hidden.
        while (name := self.special_pattern.search(text)) is not None:
            text = text.replace(name[0], self.stand_ins[name[0][0]] + name[0][1:])
        return text

    def reveal(self, text: str) -> str:
        return text.translate({ord(stand_in): first for first, stand_in in self.stand_ins.items()})


def _check(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise ChatTemplateError("a turn has at least one message")
    for message in messages:
        if message.role not in ROLES:
            raise ChatTemplateError(f"unknown role; known are {', '.join(ROLES)}")


def _raise(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON that keeps non-ASCII characters and, unlike the template engine's own filter, does not escape HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
