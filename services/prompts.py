"""A turn's input → token ids, with the server's own tokenizer and chat template."""

import asyncio
from collections.abc import Callable

from engine.core.ids import TOKEN_BYTES, SessionId, TurnId, unpack_ids
from services.backend import Backend
from services.drafts import ChatDraft, IdsDraft, InputDraft, TextDraft, TurnDraft
from services.errors import EdgeReason, invalid_field
from services.tokenization.chat import ChatMessage, ChatTemplate, ChatTemplateError

_INLINE_CHARS_MAX = 4096
"""Texts up to here are tokenized in about a millisecond; longer ones leave the loop to others meanwhile."""


async def build_prompt(backend: Backend, draft: TurnDraft, given: InputDraft) -> list[int]:
    """The ids of the new part of the turn. Raises CallError, or Refusal for an unknown session or parent."""
    match given:
        case IdsDraft():
            return list(given.token_ids)
        case TextDraft():
            return await _off_loop(lambda: backend.tokenizer.encode_text(given.text), len(given.text))
        case ChatDraft():
            return await _build_chat(backend, draft, given.messages)


async def _build_chat(backend: Backend, draft: TurnDraft, messages: tuple[ChatMessage, ...]) -> list[int]:
    if backend.template is None:
        raise invalid_field("chat", "this model has no chat template", reason=EdgeReason.CHAT_UNSUPPORTED)
    template = backend.template
    tail_id = await _history_tail(backend, draft)
    num_chars = sum(len(message.content) for message in messages)
    try:
        return await _off_loop(lambda: _render(template, messages, tail_id), num_chars)
    except ChatTemplateError as error:
        raise invalid_field("chat.messages", str(error), reason=EdgeReason.CHAT_INVALID) from error


async def _history_tail(backend: Backend, draft: TurnDraft) -> int | None:
    """Last id of what the turn continues; None when it begins a conversation."""
    if draft.session_id is None:
        return None
    parent = None if draft.parent is None else TurnId(draft.parent)
    history = await backend.engine.history(SessionId(draft.session_id), parent)
    return unpack_ids(history[-TOKEN_BYTES:])[0] if history else None


def _render(template: ChatTemplate, messages: tuple[ChatMessage, ...], tail_id: int | None) -> list[int]:
    return template.first_turn_ids(messages) if tail_id is None else template.append_turn_ids(messages, tail_id)


async def _off_loop(encode: Callable[[], list[int]], num_chars: int) -> list[int]:
    return encode() if num_chars <= _INLINE_CHARS_MAX else await asyncio.to_thread(encode)
