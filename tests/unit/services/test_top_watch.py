"""The live view: it outlives its server, obeys its keys, and asks for each thing once a look."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest
from rich.text import Text

from services.cli.top_view.reading import Reading, take_reading
from services.cli.top_view.screen import read_keys
from services.cli.top_view.watch import Watch
from services.client import History, Incident, ModelInfo, PoolStats, ServerState, TenureError
from tests.kit.readings import INCIDENT, make_reading

SILENT = TenureError("UNAVAILABLE", "nobody", code=grpc.StatusCode.UNAVAILABLE)
LOADING = TenureError("SERVER_LOADING", "wait", code=grpc.StatusCode.UNAVAILABLE)
UNKNOWN = TenureError("UNIMPLEMENTED", "Method not found!", code=grpc.StatusCode.UNIMPLEMENTED)
TOLD = make_reading(incidents=(INCIDENT,))


class FakeServer:
    """Answers with one reading, or with the error that is set. Errors of single calls go first."""

    def __init__(self) -> None:
        self.error: TenureError | None = None
        self.refused: dict[str, TenureError] = {}
        self.asked = Counter[str]()

    def _ask(self, name: str) -> None:
        self.asked[name] += 1
        error = self.refused.get(name, self.error)
        if error is not None:
            raise error

    async def is_ready(self) -> bool:
        self._ask("is_ready")
        return TOLD.is_ready

    async def model(self) -> ModelInfo:
        self._ask("model")
        assert TOLD.model is not None
        return TOLD.model

    async def pools(self) -> PoolStats:
        self._ask("pools")
        assert TOLD.stats is not None
        return TOLD.stats

    async def snapshot(self) -> ServerState:
        self._ask("snapshot")
        assert TOLD.state is not None
        return TOLD.state

    async def history(self, last_s: float | None = None, *, with_facts: bool = True) -> History:
        self._ask("history")
        assert last_s is not None
        assert not with_facts, "they are not shown"
        assert TOLD.history is not None
        return TOLD.history

    async def incidents(self) -> tuple[Incident, ...]:
        self._ask("incidents")
        return TOLD.incidents


class FakeScreen:
    """Keeps what it is shown, and tells who waits for it."""

    size = (120, 40)
    has_keys = True

    def __init__(self) -> None:
        self.shown = ""
        self.is_gone = False
        self._changed = asyncio.Event()

    def show(self, lines: Sequence[Text]) -> None:
        if self.is_gone:
            raise OSError("the terminal is gone")
        self.shown = "\n".join(line.plain for line in lines)
        self._changed.set()

    async def wait_for(self, text: str) -> None:
        while text not in self.shown:
            self._changed.clear()
            await self._changed.wait()


class Rig:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.server = FakeServer()
        self.screen = FakeScreen()
        self.watch = Watch(
            self.server,
            self.screen,
            "127.0.0.1:50051",
            interval_s=0.0,
            sort="pages",
            clock=lambda: self.now_s,
            describe=lambda error: f"told: {error.message}",
        )


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_take_reading_when_all_answer_then_all_is_there_and_each_was_asked_once() -> None:
    server = FakeServer()
    assert await take_reading(server) == TOLD
    assert server.asked == Counter(("is_ready", "model", "pools", "snapshot", "history", "incidents"))


@pytest.mark.parametrize("health", [None, UNKNOWN])
async def test_take_reading_when_the_server_knows_none_of_it_then_that_is_an_error(health: TenureError | None) -> None:
    server = FakeServer()
    server.refused = dict.fromkeys(("model", "pools", "snapshot", "history", "incidents"), UNKNOWN)
    if health is not None:
        server.refused["is_ready"] = health
    with pytest.raises(TenureError) as caught:
        await take_reading(server)
    assert caught.value is UNKNOWN


async def test_take_reading_when_an_older_server_knows_some_of_it_then_that_is_shown_and_no_cause_made_up() -> None:
    server = FakeServer()
    server.refused = dict.fromkeys(("history", "incidents"), UNKNOWN)
    reading = await take_reading(server)
    assert reading == replace(TOLD, history=None, incidents=(), refusal=None)


async def test_take_reading_when_the_server_loads_then_what_is_refused_is_left_out_and_why_is_told() -> None:
    server = FakeServer()
    server.refused = dict.fromkeys(("model", "pools", "snapshot", "history"), LOADING)
    reading = await take_reading(server)
    assert reading == Reading(TOLD.is_ready, incidents=TOLD.incidents, refusal="SERVER_LOADING")


@pytest.mark.parametrize(
    "error", [SILENT, TenureError("DEADLINE_EXCEEDED", "late", code=grpc.StatusCode.DEADLINE_EXCEEDED)]
)
async def test_take_reading_when_one_call_is_not_answered_then_raises(error: TenureError) -> None:
    server = FakeServer()
    server.refused = {"snapshot": error}
    with pytest.raises(TenureError) as raised:
        await take_reading(server)
    assert raised.value is error


async def test_watch_when_q_is_pressed_then_ends(rig: Rig) -> None:
    run = asyncio.create_task(rig.watch.run())
    await rig.screen.wait_for("books balance")
    rig.watch.press("x")
    assert not run.done()
    rig.watch.press("q")
    await run


async def test_watch_when_the_server_goes_and_comes_back_then_says_since_when_and_recovers(rig: Rig) -> None:
    run = asyncio.create_task(rig.watch.run())
    await rig.screen.wait_for("ready  up")
    rig.server.error = SILENT
    rig.now_s += 12
    await rig.screen.wait_for("NOT ANSWERING for 12 s")
    assert "told: nobody" in rig.screen.shown
    assert "steps/s" in rig.screen.shown, "the last reading stays"
    rig.now_s += 30
    await rig.screen.wait_for("NOT ANSWERING for 42 s")
    rig.server.error = None
    await rig.screen.wait_for("ready  up")
    rig.watch.leave()
    await run


async def test_watch_when_no_server_has_ever_answered_then_waits_for_one(rig: Rig) -> None:
    rig.server.error = SILENT
    run = asyncio.create_task(rig.watch.run())
    await rig.screen.wait_for("NOT ANSWERING")
    rig.server.error = None
    await rig.screen.wait_for("ready  up")
    rig.watch.leave()
    await run


async def test_watch_when_the_terminal_is_gone_then_ends_with_what_the_process_knows_how_to_tell(rig: Rig) -> None:
    run = asyncio.create_task(rig.watch.run())
    await rig.screen.wait_for("ready  up")
    rig.screen.is_gone = True
    with pytest.raises(OSError, match="the terminal is gone"):
        await run


async def test_watch_when_paused_then_nothing_is_asked_until_it_goes_on(rig: Rig) -> None:
    run = asyncio.create_task(rig.watch.run())
    await rig.screen.wait_for("ready  up")
    rig.watch.press("p")
    assert "paused" in rig.screen.shown
    assert "p go on" in rig.screen.shown
    for _ in range(20):  # a look that had begun comes to its end
        await asyncio.sleep(0)
    asked = rig.server.asked.total()
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.server.asked.total() == asked
    rig.watch.press("p")
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.server.asked.total() > asked
    rig.watch.leave()
    await run


async def test_watch_when_s_is_pressed_then_the_next_order_and_at_the_end_the_first(rig: Rig) -> None:
    orders = []
    for _ in range(3):
        rig.watch.press("s")
        orders.append(rig.screen.shown.partition("sorted by ")[2].split()[0])
    assert orders == ["tokens", "name", "pages"]


@pytest.mark.parametrize(
    ("pressed", "keys"),
    [(b"q", "q"), (b"Ps", "ps"), (b"\x1b[A\x1b[1;5B", ""), (b"\x1bOQ\x1bq", ""), (b"\x1b", ""), (b"\xffq", "\ufffdq")],
)
def test_read_keys_when_special_keys_are_pressed_then_their_letters_are_none(pressed: bytes, keys: str) -> None:
    assert read_keys(pressed) == keys
