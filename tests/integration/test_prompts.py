"""Text prompts: the model's beginning-of-sequence id stands once, at the start of what the model reads."""

import asyncio

from engine.core.config import CoreConfig
from engine.core.ids import SessionId
from engine.runtime.handle import Base
from services.backend import Backend
from services.drafts import TextDraft, TurnDraft
from services.prompts import build_prompt
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


def test_text_when_it_starts_a_history_then_bos_is_before_it_and_never_again() -> None:
    async def main() -> tuple[list[list[int]], list[Base | None]]:
        capabilities = shadow_capabilities()
        config = CoreConfig(
            page_size=capabilities.page_size,
            pool_pages=capabilities.pool_pages,
            num_rows=capabilities.num_rows,
            context_len=capabilities.context_len,
            vocab_size=capabilities.vocab_size,
        )
        async with serving(ShadowExecutor(capabilities), config) as rig:
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
