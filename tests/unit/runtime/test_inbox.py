"""The inbox: bounded, ordered, and nobody waits for an answer that can not come."""

import asyncio

import pytest

from engine.core.commands import Abort, AbortReason, Close
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import Rid, SessionId
from engine.runtime.handle import EngineClosed
from engine.runtime.inbox import Inbox, Posted

FIRST, SECOND = Close(SessionId("a")), Close(SessionId("b"))


async def test_send_when_loop_answers_then_sender_goes_on() -> None:
    inbox = Inbox(4)
    sending = asyncio.create_task(inbox.send(FIRST))
    await inbox.wait(timeout_s=1)
    posted = inbox.take()
    assert isinstance(posted, Posted)
    assert posted.command == FIRST
    assert not sending.done()
    posted.reply.set_result(None)
    await sending
    assert inbox.take() is None


async def test_send_when_full_then_refused_with_limit() -> None:
    inbox = Inbox(1)
    waiting = asyncio.create_task(inbox.send(FIRST))
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as caught:
        await inbox.send(SECOND)
    assert (caught.value.reason, caught.value.limit) == (RefusalReason.QUEUE_FULL, 1)
    waiting.cancel()


async def test_post_abort_when_inbox_is_full_then_taken_all_the_same_and_first_reason_counts() -> None:
    inbox = Inbox(1)
    waiting = asyncio.create_task(inbox.send(FIRST))
    await asyncio.sleep(0)
    inbox.post_abort(Rid(7), AbortReason.DEADLINE)
    inbox.post_abort(Rid(7), AbortReason.CLIENT)
    assert isinstance(inbox.take(), Posted)
    assert inbox.take() == Abort(Rid(7), AbortReason.DEADLINE)
    assert inbox.take() is None
    waiting.cancel()


async def test_take_when_an_abort_came_before_a_command_then_it_is_taken_before_it() -> None:
    inbox = Inbox(1)
    inbox.post_abort(Rid(7), AbortReason.CLIENT)
    waiting = asyncio.create_task(inbox.send(FIRST))
    await asyncio.sleep(0)
    assert inbox.take() == Abort(Rid(7), AbortReason.CLIENT)
    assert isinstance(inbox.take(), Posted)
    waiting.cancel()


async def test_close_when_commands_wait_then_they_and_later_ones_are_answered() -> None:
    inbox = Inbox(4)
    waiting = asyncio.create_task(inbox.send(FIRST))
    await asyncio.sleep(0)
    inbox.close(EngineClosed("over"))
    with pytest.raises(EngineClosed, match="over"):
        await waiting
    with pytest.raises(EngineClosed, match="over"):
        await inbox.send(SECOND)


async def test_wait_when_rung_before_then_returns_and_lets_others_run() -> None:
    inbox = Inbox(4)
    inbox.ring()
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "other")
    await inbox.wait(timeout_s=60)
    assert ran == ["other"]


async def test_wait_when_nothing_rings_then_returns_after_its_time() -> None:
    await Inbox(4).wait(timeout_s=0.0)


async def test_close_when_many_wait_then_each_sender_has_an_exception_of_its_own() -> None:
    inbox = Inbox(4)
    waiting = [asyncio.create_task(inbox.send(command)) for command in (FIRST, SECOND)]
    await asyncio.sleep(0)
    over = EngineClosed("over")
    inbox.close(over)
    raised = [*await asyncio.gather(*waiting, return_exceptions=True)]
    raised += await asyncio.gather(inbox.send(FIRST), inbox.send(SECOND), return_exceptions=True)
    assert len({id(each) for each in (*raised, over)}) == 5
    assert over.__traceback__ is None
