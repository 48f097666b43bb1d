"""Opening a session when the caller leaves meanwhile: what nobody was told of is closed, what is another's stays."""

import asyncio

import pytest

from engine.core.errors import Refusal
from engine.core.ids import SessionId
from tests.kit.runtime_rig import RuntimeRig, running

SID = SessionId("s")


async def open_names(rig: RuntimeRig) -> list[str]:
    return [state.session_id for state in (await rig.engine.snapshot()).sessions]


async def settle(rig: RuntimeRig) -> None:
    """Commands are taken in order: once these are, so are those before them."""
    for _ in range(3):
        await rig.engine.close_session(SessionId("nothing"))


@pytest.mark.parametrize("num_yields", range(5))
async def test_open_when_cancelled_at_any_moment_then_the_session_is_closed(num_yields: int) -> None:
    async with running() as rig:
        opening = asyncio.create_task(rig.engine.open_session(SID, streaming=True))
        for _ in range(num_yields):
            await asyncio.sleep(0)
        has_opened = not opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await settle(rig)
        assert await open_names(rig) == ([SID] if has_opened else [])


async def test_open_when_cancelled_and_the_name_is_anothers_then_that_session_stays() -> None:
    async with running() as rig:
        await rig.engine.open_session(SID, streaming=True)
        for num_yields in range(5):
            opening = asyncio.create_task(rig.engine.open_session(SID, streaming=False))
            for _ in range(num_yields):
                await asyncio.sleep(0)
            opening.cancel()
            (outcome,) = await asyncio.gather(opening, return_exceptions=True)
            assert isinstance(outcome, asyncio.CancelledError | Refusal)
            await settle(rig)
        assert await open_names(rig) == [SID]


async def test_open_when_cancelled_as_the_engine_stops_then_both_end() -> None:
    async with running() as rig:
        opening = asyncio.create_task(rig.engine.open_session(SID, streaming=True))
        await asyncio.sleep(0)
        opening.cancel()
        async with asyncio.timeout(2):
            await rig.engine.stop()
        assert opening.cancelled()
