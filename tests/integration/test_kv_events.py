"""Our own stream of KV events over gRPC: whoever replays it has the books of the server, whatever happens."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from random import Random

import grpc
import pytest
from grpc import aio

from engine.core.events import KvMoved, Numbered, TurnRetracted
from engine.core.ids import StepNo
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from protos.v1 import ownership_pb2
from services.cli.event_lines import format_event, format_image
from services.cli.events import format_verification, verify
from services.client import Client, KvBooks, KvBooksImage, KvEventInfo, TenureError, connect
from services.kv_stream import stream_kv_events
from tests.kit.engine_traffic import EngineTraffic
from tests.kit.kv_rig import (
    LOG_ID,
    Items,
    KvRig,
    Pools,
    assert_same,
    begin_books,
    following,
    owners_of,
    replay_to,
    serving,
)
from tests.kit.runtime_rig import wait_until
from tests.kit.server_rig import running_server

MOMENTS = 100
STEP_S = 0.002
"""Of a forward: so that a moment is some steps, and not hundreds."""
MANY = 8_000
"""Events: far more than a narrow connection takes."""
TINY = Pools(pool_pages=14)
DUE = {Move.GRANT, Move.DONATE, Move.PARK, Move.LEND, Move.EVICT, Move.RELEASE}
TINY_DUE = DUE | {Move.DEMOTE, TurnRetracted}
"""What a run has to show, however long it takes."""
VARIANTS = {
    "full": Pools(pool_pages=20),
    "tiny": TINY,
    "windows": Pools(pool_pages=28, window=6, swa_pages=20),
    "states": Pools(pool_pages=28, state_slots=22),
    "windows and states": Pools(pool_pages=28, window=6, swa_pages=20, state_slots=22),
}


async def collect(items: Items, count: int) -> list[KvEventInfo]:
    """So many events, and no books."""
    events: list[KvEventInfo] = []
    while len(events) < count:
        item = await anext(items)
        assert isinstance(item, KvEventInfo)
        events.append(item)
    return events


async def make_events(rig: KvRig, count: int, seed: int = 1) -> None:
    """Traffic until the log has told so many events more."""
    goal = rig.log.last_sequence + count

    async def has_told() -> bool:
        return rig.log.last_sequence >= goal

    async with EngineTraffic(rig.runtime.engine, seed).running():
        await wait_until(has_told, 60)


def kinds_told(events: Sequence[Numbered]) -> set[object]:
    """Moves, and whether turns were retracted."""
    retracted: set[object] = {TurnRetracted for each in events if isinstance(each.event, TurnRetracted)}
    return {each.event.move for each in events if isinstance(each.event, KvMoved)} | retracted


@pytest.mark.timeout(120)
@pytest.mark.parametrize("variant", VARIANTS)
async def test_stream_when_replayed_then_the_books_at_100_moments_of_a_loaded_run_are_the_servers(
    variant: str,
) -> None:
    draw, due = Random(variant), TINY_DUE if variant == "tiny" else DUE
    async with following(VARIANTS[variant]) as rig, aclosing(rig.client.kv_events()) as items:
        engine, told = rig.runtime.engine, rig.runtime.sink.events
        rig.runtime.executor.faults.delay_s = lambda _plan: STEP_S
        books = await begin_books(items)
        moments = 0
        async with asyncio.timeout(90), EngineTraffic(engine, seed=len(variant)).running():
            while moments < MOMENTS or not kinds_told(told) >= due:
                moments += 1
                await asyncio.sleep(draw.choice((0, 0.001, 0.01, 0.03)))
                stats = await rig.client.pools()
                await replay_to(items, books, stats.kv_sequence)
                assert (books.sequence, books.log_id) == (stats.kv_sequence, stats.kv_log_id)
                assert books.find_differences(stats) == ()
                image, last = await engine.image(), rig.log.last_sequence
                await replay_to(items, books, last)
                assert_same(books, image)
        await rig.runtime.wait_no_turns()
        await rig.runtime.full_pool()
        image, last = await engine.image(), rig.log.last_sequence
        await replay_to(items, books, last)
        assert_same(books, image)
        assert owners_of(books) <= {"cache"}, "all turns and sessions have ended"
        assert rig.log.num_lapped == 0


async def test_reader_when_it_comes_back_from_an_event_that_is_kept_then_all_that_it_missed_and_no_books() -> None:
    async with following() as rig:
        async with aclosing(rig.client.kv_events()) as items:
            books = await begin_books(items)
            await make_events(rig, 300)
            seen = await replay_to(items, books, 100)
        await make_events(rig, 50, seed=2)
        async with aclosing(rig.client.kv_events(books.sequence + 1, books.log_id)) as items:
            missed = await collect(items, rig.log.last_sequence - books.sequence)
        async with aclosing(rig.client.kv_events(1, LOG_ID)) as items:
            whole = await collect(items, rig.log.last_sequence)
        assert [*seen, *missed] == whole
        assert [event.sequence for event in whole] == list(range(1, rig.log.last_sequence + 1))
        for event in missed:
            books.apply(event)
        assert_same(books, await rig.runtime.engine.image())


@pytest.mark.parametrize(
    ("from_sequence", "log_id"),
    [(1, LOG_ID), (10_000_000, LOG_ID), (2**64 - 1, LOG_ID), (1, "log-0"), (None, None), (None, LOG_ID)],
    ids=["gone", "not yet", "never", "another log", "nothing asked", "only a log"],
)
async def test_reader_when_its_events_can_not_be_had_then_the_books_come_first(
    from_sequence: int | None, log_id: str | None
) -> None:
    async with following(events_max=32) as rig:
        await make_events(rig, 100)
        async with aclosing(rig.client.kv_events(from_sequence, log_id)) as items:
            books = await begin_books(items)
            assert (books.log_id, books.sequence) == (LOG_ID, rig.log.last_sequence)
            assert_same(books, await rig.runtime.engine.image())
        assert rig.log.num_lapped == 0, "a reader that begins was not too slow"


@pytest.mark.parametrize(
    ("from_sequence", "log_id", "field"),
    [(0, LOG_ID, "from_sequence"), (0, None, "from_sequence"), (5, None, "log_id"), (5, "", "log_id")],
)
async def test_reader_when_the_request_makes_no_sense_then_refused_by_field(
    from_sequence: int, log_id: str | None, field: str
) -> None:
    async with following() as rig:
        with pytest.raises(TenureError) as caught:
            await anext(rig.client.kv_events(from_sequence, log_id))
        assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_reader_when_the_next_event_is_yet_to_come_then_it_waits_for_it() -> None:
    async with following() as rig:
        await make_events(rig, 10)
        last = rig.log.last_sequence
        async with aclosing(rig.client.kv_events(last + 1, LOG_ID)) as items:
            first = asyncio.ensure_future(anext(items))
            await rig.client.pools()
            assert not first.done()
            await make_events(rig, 5, seed=2)
            event = await first
            assert isinstance(event, KvEventInfo)
            assert event.sequence == last + 1


async def test_reader_when_so_slow_that_events_are_gone_then_books_anew_and_the_right_ones_in_the_end() -> None:
    async with following(events_max=64) as rig:
        stream = stream_kv_events(rig.backend, ownership_pb2.KvEventsRequest())
        async with aclosing(stream) as messages:
            first = await anext(messages)
            await make_events(rig, 20)
            second = await anext(messages)
            await make_events(rig, 200, seed=2)
            third = await anext(messages)
        assert [first.WhichOneof("content"), second.WhichOneof("content")] == ["snapshot", "events"]
        assert third.WhichOneof("content") == "snapshot"
        assert third.snapshot.sequence == rig.log.last_sequence
        assert rig.log.num_lapped == 1


@pytest.mark.timeout(120)
async def test_reader_when_blocked_then_turns_go_on_and_it_ends_with_the_right_books() -> None:
    """Its connection takes 64 KiB, and then nothing more until it reads again."""
    narrow = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))
    async with (
        following(events_max=256) as rig,
        Client(aio.insecure_channel(rig.target, options=narrow)) as client,
        aclosing(client.kv_events()) as items,
    ):
        books = await begin_books(items)
        began_s = asyncio.get_running_loop().time()
        await make_events(rig, MANY)
        blocked_s = asyncio.get_running_loop().time() - began_s
        told = await replay_to(items, books, rig.log.last_sequence)
        assert any(isinstance(item, KvBooksImage) for item in told), "it was so slow that events were gone"
        assert rig.log.num_lapped > 0
        assert_same(books, await rig.runtime.engine.image())
    assert blocked_s < 3 * await time_events_without_readers(MANY) + 1, "nobody waits for a reader"


async def time_events_without_readers(count: int) -> float:
    loop = asyncio.get_running_loop()
    async with following() as rig:
        began_s = loop.time()
        await make_events(rig, count)
        return loop.time() - began_s


async def test_readers_when_three_read_at_once_then_each_is_told_the_same() -> None:
    async def read(rig: KvRig, ready: asyncio.Semaphore, last: asyncio.Future[int]) -> list[KvEventInfo | KvBooksImage]:
        async with connect(rig.target) as client, aclosing(client.kv_events()) as items:
            books = await begin_books(items)
            ready.release()
            told = await replay_to(items, books, await last)
            assert_same(books, await rig.runtime.engine.image())
            return told

    async with following() as rig:
        ready, last = asyncio.Semaphore(0), asyncio.get_running_loop().create_future()
        readers = [asyncio.create_task(read(rig, ready, last)) for _ in range(3)]
        for _ in readers:
            await ready.acquire()
        await make_events(rig, 400)
        await rig.runtime.full_pool()
        last.set_result(rig.log.last_sequence)
        told = await asyncio.gather(*readers)
        assert told[0] == told[1] == told[2]
        assert len(told[0]) == rig.log.last_sequence


async def test_stream_when_the_server_stops_then_the_reader_hears_why_and_the_stop_is_not_held_up() -> None:
    async with running_server() as rig, aclosing(rig.client.kv_events()) as items:
        await begin_books(items)
        waiting = asyncio.ensure_future(anext(items))
        rig.stop.set()
        with pytest.raises(TenureError) as caught:
            await waiting
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING")
        async with asyncio.timeout(5):
            assert await rig.run == 0


async def test_stream_when_the_server_is_gone_then_an_error_as_of_any_call() -> None:
    async with (
        following() as rig,
        AsyncExitStack() as server,
        connect(await server.enter_async_context(serving(rig.backend))) as client,
    ):
        items = client.kv_events()
        await begin_books(items)
        waiting = asyncio.ensure_future(anext(items))
        await rig.client.pools()
        await server.aclose()
        with pytest.raises(TenureError):
            await waiting


async def test_stream_when_the_client_is_closed_under_it_then_an_error_and_no_cancellation() -> None:
    async with following() as rig, connect(rig.target) as client:
        items = client.kv_events()
        await begin_books(items)
        waiting = asyncio.ensure_future(anext(items))
        await rig.client.pools()
        await client.close()
        with pytest.raises(TenureError):
            await waiting


async def test_stream_when_the_log_has_not_heard_everything_then_an_incident_and_not_wrong_books(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with following() as rig:
        await make_events(rig, 5)
        rig.log.last_core_seq -= 1
        with pytest.raises(TenureError) as caught:
            await anext(rig.client.kv_events())
        assert caught.value.reason == "INTERNAL_ERROR"
        assert "event=incident" in caplog.text


async def test_verify_when_the_server_is_loaded_then_every_comparison_is_equal() -> None:
    async with following(VARIANTS["windows"]) as rig, EngineTraffic(rig.runtime.engine, 7).running():
        found = await verify(rig.client, 0.5)
    assert found.difference == ""
    assert found.comparisons > 3
    assert found.events > 20


@pytest.mark.parametrize(
    ("source", "found"),
    [(FREE, "full: available 63, but 62 by the events"), (CACHE, "full 1 is of free, not of cache")],
    ids=["what was not", "what can not be"],
)
async def test_verify_when_the_log_tells_a_move_that_never_was_then_the_difference_is_found(
    source: Owner, found: str
) -> None:
    async with following() as rig:
        verifying = asyncio.create_task(verify(rig.client, 60.0))

        async def is_followed() -> bool:
            return rig.log.num_waiting > 0

        await wait_until(is_followed)
        invented = KvMoved(PoolKind.FULL, Move.GRANT, source, Owner(OwnerKind.REQUEST, 9), (1,), StepNo(0), "")
        rig.log.publish((Numbered(rig.log.last_core_seq, invented),), 0.0)
        async with asyncio.timeout(10):
            verification = await verifying
        assert found in verification.difference
        assert "THE EVENTS DO NOT LEAD TO THE BOOKS" in format_verification(verification)


async def test_events_command_when_interrupted_then_it_says_where_to_go_on_and_goes_on_there() -> None:
    async with running_server() as rig:
        command = (sys.executable, "-u", "-m", "services.cli.main", "events", "--target", rig.target)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        assert process.stdout is not None
        first = await process.stdout.readline()
        async with rig.client.session("chat") as session:
            await rig.collect(session.turn(token_ids=range(10), max_tokens=3, ignore_eos=True, turn_id="t" * 32))
            line = first
            while b" parked " not in line:
                line = await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, complaints = await process.communicate()
        assert process.returncode == 128 + signal.SIGINT
        assert f"turn {'t' * 32}]".encode() in line, "a pipe gets names whole"
        last = (rest or line).splitlines()[-1].split(b"  ")[1].removeprefix(b"#").decode()
        log_id = first.partition(b"@")[2].split()[0].decode()
        since = f"{last}@{log_id}"
        assert complaints.decode() == (
            f"tenure: to go on from here: tenure events --since {since} --target {rig.target}\n"
        )
        process = await asyncio.create_subprocess_exec(*command, "--since", since, stdout=PIPE, stderr=PIPE)
        assert process.stdout is not None
        await rig.collect(rig.client.generate(token_ids=range(10), max_tokens=3, ignore_eos=True))
        line = await process.stdout.readline()
        rig.stop.set()
        _, complaints = await process.communicate()
        assert line.split(b"  ")[1:2] == [f"#{int(last) + 1}".encode()], complaints
        assert b"tenure: to go on from here: tenure events --since " in complaints, "also when the server ends it"


async def test_lines_when_read_from_a_server_then_one_a_fact_with_the_names_of_session_and_turn() -> None:
    async with running_server() as rig:
        async with aclosing(rig.client.kv_events()) as items:
            image = await anext(items)
            assert isinstance(image, KvBooksImage)
            books = KvBooks(image)
            async with rig.client.session("chat") as session:
                await rig.collect(session.turn(token_ids=range(10), max_tokens=3, ignore_eos=True, turn_id="t"))
                stats = await rig.client.pools()
                events = await replay_to(items, books, stats.kv_sequence)
        assert f"books after {image.sequence}@{image.log_id}" in format_image(image)
        lines = [format_event(event) for event in events if isinstance(event, KvEventInfo)]
        assert any(
            "granted" in line and "free -> request" in line and "[session chat, turn t]" in line for line in lines
        )
        assert any("parked" in line and "-> session" in line for line in lines)


async def test_flush_when_asked_then_what_is_cached_and_unused_goes_and_it_is_told() -> None:
    async with running_server() as rig:
        turn = rig.client.generate(token_ids=range(20), max_tokens=2, ignore_eos=True)
        await rig.collect(turn)
        cached = (await rig.client.pools()).find("full").evictable
        flushed = await rig.client.flush_cache()
        assert (flushed.pages, flushed.swa_pages, flushed.states) == (cached, 0, 0)
        assert cached > 0
        assert (await rig.client.pools()).find("full").cached == 0
        assert await rig.client.kv_event_sources() == ()
