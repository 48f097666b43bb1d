"""Text becomes ids: the beginning-of-sequence id stands once, and nothing is encoded that can not fit."""

import asyncio

import pytest
from tokenizers import pre_tokenizers

from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId
from engine.runtime.handle import Base
from services.backend import Backend
from services.drafts import ChatDraft, TextDraft, TurnDraft
from services.prompts import build_prompt
from services.tokenization.chat import ChatMessage, ChatTemplate
from services.tokenization.tokenizer import Tokenizer, byte_level_encoders
from tests.kit.engine_rig import serving
from tests.kit.server_rig import byte_tokenizer
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities

BOS = 7


def make_draft(session: str | None) -> TurnDraft:
    return TurnDraft(
        session_id=session,
        turn_id=None,
        parent=None,
        input=TextDraft("ab"),
        max_tokens=2,
        temperature=None,
        ignore_eos=False,
    )


CONTEXT_LEN = 128


def make_config() -> CoreConfig:
    capabilities = shadow_capabilities()
    return CoreConfig(
        page_size=capabilities.page_size,
        pool_pages=capabilities.pool_pages,
        num_rows=capabilities.num_rows,
        context_len=CONTEXT_LEN,
        vocab_size=capabilities.vocab_size,
    )


def test_text_when_it_starts_a_history_then_bos_is_before_it_and_never_again() -> None:
    async def main() -> tuple[list[list[int]], list[Base | None]]:
        async with serving(ShadowExecutor(shadow_capabilities()), make_config()) as rig:
            backend = Backend(rig.engine, byte_tokenizer((BOS,)), None)
            await rig.engine.open_session(SessionId("s"), streaming=True)
            first = await build_prompt(backend, make_draft("s"), TextDraft("ab"))
            await rig.turn("t1", first.ids, "s", max_tokens=2)
            second = await build_prompt(backend, make_draft("s"), TextDraft("ab"))
            alone = await build_prompt(backend, make_draft(None), TextDraft("ab"))
            return [first.ids, second.ids, alone.ids], [first.base, second.base, alone.base]

    ids, bases = asyncio.run(main())
    assert ids == [[BOS, 97, 98], [97, 98], [BOS, 97, 98]]
    assert [base and base.num_ids for base in bases] == [0, 5, 0]


class CountingTokenizer(Tokenizer):
    """256 tokens, one a byte. Counts what it is asked to encode."""

    def __init__(self) -> None:
        like = byte_tokenizer()
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        super().__init__(like.vocabulary, byte_level_encoders(like.vocabulary, [], split))
        self.num_encoded = 0

    def encode_text(self, text: str, *, is_continued: bool = False) -> list[int]:
        self.num_encoded += len(text)
        return super().encode_text(text, is_continued=is_continued)


SOURCE = "{% for m in messages %}[{{ m.content if m.role == 'user' else '' }}{{ m.content[:9] }}]{% endfor %}"


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("length", [3000, CONTEXT_LEN])
@pytest.mark.parametrize("session", [None, "s"])
def test_input_when_it_can_not_fit_the_context_then_refused_before_it_is_encoded(
    is_chat: bool, length: int, session: str | None
) -> None:
    """On the loop's own thread (short ones) and off it, with and without a history."""
    said = "ä" * length
    given = ChatDraft((ChatMessage("user", said),)) if is_chat else TextDraft(said)

    async def main() -> tuple[Refusal, int]:
        async with serving(ShadowExecutor(shadow_capabilities()), make_config()) as rig:
            tokenizer = CountingTokenizer()
            backend = Backend(rig.engine, tokenizer, ChatTemplate(SOURCE, tokenizer, {}))
            await rig.engine.open_session(SessionId("s"), streaming=True)
            await rig.turn("t1", [1, 2], "s", max_tokens=2)
            with pytest.raises(Refusal) as caught:
                await build_prompt(backend, make_draft(session), given)
            return caught.value, tokenizer.num_encoded

    refusal, num_encoded = asyncio.run(main())
    assert (refusal.reason, num_encoded) == (RefusalReason.PROMPT_EXCEEDS_CONTEXT, 0)
    assert refusal.message.startswith("at least ")


def test_chat_when_the_template_shows_little_of_a_long_message_then_it_is_taken() -> None:
    async def main() -> list[int]:
        async with serving(ShadowExecutor(shadow_capabilities()), make_config()) as rig:
            tokenizer = CountingTokenizer()
            backend = Backend(rig.engine, tokenizer, ChatTemplate(SOURCE, tokenizer, {}))
            given = ChatDraft((ChatMessage("system", "x" * 500_000),))
            return (await build_prompt(backend, make_draft(None), given)).ids

    assert bytes(asyncio.run(main())) == b"[xxxxxxxxx]"
