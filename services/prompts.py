"""A turn's input → token ids, with the server's own tokenizer and chat template."""

from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId, TurnId
from engine.runtime.handle import Base
from services.backend import Backend
from services.drafts import ChatDraft, IdsDraft, InputDraft, Prompt, TextDraft, TurnDraft
from services.errors import EdgeReason, invalid_field
from services.tokenization.chat import ChatMessage, ChatTemplate, ChatTemplateError, RenderedTurn

_MESSAGE_CHARS = 64
"""What a message costs beside its content, in characters: the template's own words, and its marks."""


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
    refuse_past_context(tokenizer.min_ids(len(text.encode())), backend.engine.context_len, "at least ")
    prefix_ids = () if base.num_ids else tokenizer.prompt_prefix_ids
    is_continued = bool(base.num_ids or prefix_ids)
    ids = await backend.threads.run(lambda: tokenizer.encode_text(text, is_continued=is_continued), len(text))
    return Prompt([*prefix_ids, *ids], base)


async def _build_chat(backend: Backend, draft: TurnDraft, messages: tuple[ChatMessage, ...]) -> Prompt:
    if backend.template is None:
        message = "this model has no chat template: send it text to go on with, or token ids"
        raise invalid_field("chat", message, reason=EdgeReason.CHAT_UNSUPPORTED)
    template, context_len = backend.template, backend.engine.context_len
    base = await _find_base(backend, draft)
    num_chars = sum(len(message.content) + _MESSAGE_CHARS for message in messages)

    def make_ids() -> list[int]:
        # A template need not show all of a message, so its length is judged as rendered, and before it is encoded.
        rendered = _render(template, messages, base.last_id)
        refuse_past_context(template.min_ids(rendered), context_len, "at least ")
        return template.encode(rendered)

    try:
        ids = await backend.threads.run(make_ids, num_chars)
    except ChatTemplateError as error:
        raise invalid_field("chat.messages", str(error), reason=EdgeReason.CHAT_INVALID) from error
    return Prompt(ids, base)


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


def _render(template: ChatTemplate, messages: tuple[ChatMessage, ...], tail_id: int | None) -> RenderedTurn:
    return template.render_first_turn(messages) if tail_id is None else template.render_next_turn(messages, tail_id)
