"""A turn's input → token ids, with the server's own tokenizer and chat template."""

import asyncio
from collections.abc import Callable

from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId, TurnId
from engine.runtime.handle import Base
from services.backend import Backend
from services.drafts import ChatDraft, IdsDraft, InputDraft, Prompt, TextDraft, TurnDraft
from services.errors import EdgeReason, invalid_field
from services.tokenization.chat import ChatMessage, ChatTemplate, ChatTemplateError

_INLINE_CHARS_MAX = 4096
"""Texts up to here are tokenized in about a millisecond; longer ones leave the loop to others meanwhile."""


async def build_prompt(backend: Backend, draft: TurnDraft, given: InputDraft) -> Prompt:
    """The ids of the new part of the turn. Raises CallError, or Refusal for an unknown session or parent."""
    match given:
        case IdsDraft():
            return Prompt(list(given.token_ids))
        case TextDraft():
            return await _build_text(backend, draft, given.text)
        case ChatDraft():
            return await _build_chat(backend, draft, given.messages)


async def _build_text(backend: Backend, draft: TurnDraft, text: str) -> Prompt:
    """Text as it is; where nothing is before it, behind the beginning-of-sequence ids that the model wants there."""
    base = await _find_base(backend, draft)
    tokenizer = backend.tokenizer
    _refuse_too_long(backend, text)
    prefix_ids = () if base.num_ids else tokenizer.prompt_prefix_ids
    is_continued = bool(base.num_ids or prefix_ids)
    ids = await _off_loop(lambda: tokenizer.encode_text(text, is_continued=is_continued), len(text))
    return Prompt([*prefix_ids, *ids], base)


async def _build_chat(backend: Backend, draft: TurnDraft, messages: tuple[ChatMessage, ...]) -> Prompt:
    if backend.template is None:
        raise invalid_field("chat", "this model has no chat template", reason=EdgeReason.CHAT_UNSUPPORTED)
    template = backend.template
    base = await _find_base(backend, draft)
    num_chars = sum(len(message.content) for message in messages)
    try:
        ids = await _off_loop(lambda: _render(template, messages, base.last_id), num_chars)
    except ChatTemplateError as error:
        raise invalid_field("chat.messages", str(error), reason=EdgeReason.CHAT_INVALID) from error
    return Prompt(ids, base)


def _refuse_too_long(backend: Backend, text: str) -> None:
    """Raises Refusal for a text that can't fit the context, before the seconds that encoding it would take.

    Not for chats: a template need not show all of a message.
    """
    refuse_past_context(backend.tokenizer.min_ids(len(text.encode())), backend.engine.context_len, "at least ")


def refuse_past_context(num_ids: int, context_len: int, rounding: str = "") -> None:
    """Raises Refusal, PROMPT_EXCEEDS_CONTEXT, when so many new ids leave no room to generate one."""
    if num_ids >= context_len:
        message = (
            f"{rounding}{num_ids} new tokens and one to generate exceed the context of {context_len}: "
            f"{context_len - 1} new tokens would fit an empty one"
        )
        raise Refusal(RefusalReason.PROMPT_EXCEEDS_CONTEXT, message, field="input", value=num_ids, limit=context_len)


async def _find_base(backend: Backend, draft: TurnDraft) -> Base:
    """What the turn follows; nothing when it begins a conversation."""
    if draft.session_id is None:
        return Base(0, None)
    parent = None if draft.parent is None else TurnId(draft.parent)
    return Base.of(await backend.engine.find_base(SessionId(draft.session_id), parent, draft.options))


def _render(template: ChatTemplate, messages: tuple[ChatMessage, ...], tail_id: int | None) -> list[int]:
    return template.first_turn_ids(messages) if tail_id is None else template.append_turn_ids(messages, tail_id)


async def _off_loop(encode: Callable[[], list[int]], num_chars: int) -> list[int]:
    return encode() if num_chars <= _INLINE_CHARS_MAX else await asyncio.to_thread(encode)
