"""A server whose model has windows and states: all four pools, as their operators and clients see them."""

import asyncio
import sys
from dataclasses import replace

import pytest
from grpc import aio

from engine.core.core import Core
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ids import StepNo, TurnId, pack_ids
from engine.core.ownership import FREE, QUARANTINED, Move, PoolKind
from engine.core.provenance import MoveRecord, UnitHistory
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import TurnRequest
from protos.v1 import admin_pb2, admin_pb2_grpc, ownership_pb2
from services.cli.dump import format_incidents
from services.cli.main import build_parser
from services.cli.pool_history import format_pool_history
from services.cli.top_view.frame import View, render_frame
from services.cli.top_view.reading import take_reading
from services.client import Incident, TenureError
from services.client.errors import answer
from tests.kit.runtime_rig import QUICK, ByteVocabulary, core_config, oracle, read_all, running, wait_until
from tests.kit.server_rig import ServerRig, running_server
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities

WINDOW = 8
ALL_KINDS = ["full", "swa", "mamba", "rows"]
CAPABILITIES = shadow_capabilities(context_len=128, window=WINDOW, swa_pages=27, state_slots=11)
PROMPT = [7, 1, 9, 4, 4, 2, 8, 1, 1]
WINDOW_PAGES = 3
"""At most, of pages of 4 tokens."""


async def top_of(rig: ServerRig) -> str:
    view = View(rig.target, await take_reading(rig.client), "pages")
    return "\n".join(line.plain for line in render_frame(view, 120, 60))


async def test_session_when_it_has_turns_then_right_and_all_four_pools_are_told_everywhere() -> None:
    async with running_server(capabilities=CAPABILITIES) as rig, rig.client.session("s") as session:
        history: list[int] = []
        for new in (PROMPT, [5, 6], [3] * 9):
            history += new
            told = await rig.collect(session.turn(token_ids=new, max_tokens=12, ignore_eos=True))
            assert told == oracle(history, 12)
            history += told
        stats, state = await rig.client.pools(), await rig.client.snapshot()
        remembered = await rig.client.history()
        assert stats.balanced
        assert [pool.kind for pool in stats.pools] == [pool.kind for pool in state.pools] == ALL_KINDS
        assert list((await rig.client.model()).pools.items()) == [("full", 63), ("swa", 26), ("mamba", 10), ("rows", 7)]
        assert {tuple(pool.kind for pool in sample.pools) for sample in remembered.samples} == {tuple(ALL_KINDS)}
        assert (await rig.client.check()).is_clean
        (info,) = state.sessions
        assert info.kv_pages >= 1
        assert 1 <= info.swa_pages <= WINDOW_PAGES
        assert 1 <= info.states <= 2
        assert info == await rig.client.find_session("s")
        assert {fact.detail for fact in remembered.facts if fact.what == "lend"} == {"full", "swa", "mamba"}
        assert rig.executor.device.violations == []


async def test_snapshot_when_a_turn_runs_then_it_shows_what_it_holds_of_each_pool() -> None:
    async with running_server(capabilities=CAPABILITIES) as rig, rig.client.session("s") as session:
        turn = session.turn(token_ids=PROMPT, max_tokens=40, ignore_eos=True)
        async for _piece in turn:
            break
        rig.executor.hold()
        (state,) = (await rig.client.snapshot()).turns
        assert state.kv_pages >= 1
        assert state.swa_pages >= 1
        assert 2 <= state.states <= 4
        (info,) = (await rig.client.snapshot()).sessions
        assert (info.kv_state, info.swa_pages, info.states) == ("lent", state.swa_pages, state.states)
        rig.executor.let_go()
        await turn.leave()


async def test_explain_when_asked_for_a_state_or_a_window_then_its_owner_and_moves() -> None:
    async with running_server(capabilities=CAPABILITIES) as rig, rig.client.session("s") as session:
        await rig.collect(session.turn(token_ids=PROMPT, max_tokens=4))
        for pool, size in (("swa", 27), ("mamba", 11)):
            histories = [await rig.client.explain(unit, pool) for unit in range(1, size)]
            held = [history for history in histories if history.owner.kind == "session"]
            assert held, pool
            assert all(history.changes[0].move == "park" for history in held)
            assert all(history.pool == pool for history in histories)


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ("full", "pages are 1 to 63"),
        ("swa", "SWA pages are 1 to 26"),
        ("mamba", "states are 1 to 10"),
        ("rows", "rows"),
    ],
)
async def test_explain_when_there_is_no_such_unit_then_which_there_are(pool: str, told: str) -> None:
    async with running_server(capabilities=CAPABILITIES) as rig:
        with pytest.raises(TenureError, match=told) as caught:
            await rig.client.explain(99, pool)
        assert (caught.value.reason, caught.value.field) == ("FIELD_INVALID", "unit")


@pytest.mark.parametrize("kind", [ownership_pb2.POOL_KIND_SWA, ownership_pb2.POOL_KIND_MAMBA])
async def test_explain_when_the_server_has_no_such_pool_then_refused_with_those_it_has(
    kind: ownership_pb2.PoolKind.ValueType,
) -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        with pytest.raises(TenureError, match="known are POOL_KIND_FULL, POOL_KIND_ROWS") as caught:
            await answer(admin_pb2_grpc.AdminStub(channel).Explain(admin_pb2.ExplainRequest(pool=kind, unit=1)))
        assert caught.value.field == "pool"


async def test_top_and_history_when_drawn_then_each_pool_that_there_is_and_only_these() -> None:
    for capabilities, kinds in ((CAPABILITIES, ALL_KINDS), (shadow_capabilities(), ["full", "rows"])):
        async with running_server(capabilities=capabilities) as rig, rig.client.session("s") as session:
            await rig.collect(session.turn(token_ids=PROMPT, max_tokens=4))
            frame, chart = await top_of(rig), format_pool_history(await rig.client.history())
        for kind, size, sized in (
            ("full", "63 pages of 4", "full: 63 pages of 4"),
            ("swa", "26 pages of 4", "swa: 26 pages of 4"),
            ("mamba", "10 states", "mamba: 10 states"),
        ):
            for text, sought in ((frame, size), (chart, sized)):
                assert any(line.startswith(sought) for line in text.splitlines()) == (kind in kinds), (sought, text)


async def test_draft_tokens_when_the_model_has_states_then_not_offered_and_refused_by_name() -> None:
    for capabilities, is_offered in ((CAPABILITIES, False), (shadow_capabilities(), True)):
        async with running_server(capabilities=capabilities) as rig:
            assert ("draft_tokens" in (await rig.client.model()).features) == is_offered
            plain = rig.client.generate(token_ids=PROMPT, max_tokens=4)
            assert await rig.collect(plain) == oracle(PROMPT, 4)
            drafting = rig.client.generate(token_ids=PROMPT, max_tokens=4, draft_tokens=4)
            if is_offered:
                assert await rig.collect(drafting) == oracle(PROMPT, 4)
                continue
            with pytest.raises(TenureError, match="recurrent states") as caught:
                await rig.collect(drafting)
            assert (caught.value.reason, caught.value.field) == ("DRAFT_TOKENS_INVALID", "draft_tokens")


async def test_turns_when_states_are_few_then_they_wait_though_pages_are_free_and_all_complete() -> None:
    async with running_server(capabilities=replace(CAPABILITIES, state_slots=6)) as rig:
        rig.executor.hold()
        prompts = [[*PROMPT, number] for number in range(4)]
        turns = [rig.client.generate(token_ids=prompt, max_tokens=8, ignore_eos=True) for prompt in prompts]
        reading = [asyncio.create_task(rig.collect(turn)) for turn in turns]

        async def are_all_there() -> bool:
            stats = await rig.client.pools()
            return stats.turns_running + stats.turns_waiting == len(turns)

        await wait_until(are_all_there)
        stats = await rig.client.pools()
        assert stats.turns_waiting >= 2, "five states are one turn's, or little more"
        assert stats.find("full").available > 40
        rig.executor.let_go()
        assert await asyncio.gather(*reading) == [oracle(prompt, 8) for prompt in prompts]


@pytest.mark.parametrize(("field", "value"), [("window", 9), ("swa_pages", 28), ("state_slots", 12)])
def test_engine_when_the_core_plans_for_other_pools_then_refused_by_name(field: str, value: int) -> None:
    executor = ShadowExecutor(CAPABILITIES)
    config = replace(core_config(executor), **{field: value})  # type: ignore[arg-type]  # a size by its name
    with pytest.raises(ValueError, match=f"^{field}: the core plans for {value}, the executor has "):
        LocalEngine(Core(config), executor, ByteVocabulary())


async def test_engine_when_it_has_all_pools_then_turns_of_many_sessions_are_right_and_books_balance() -> None:
    async with running(in_flight_max=2, window=WINDOW, swa_pages=40, state_slots=21, context_len=128) as rig:
        for number in range(5):
            await rig.open(f"s{number}")
        histories: dict[int, list[int]] = {number: [] for number in range(5)}
        for turn in range(3):
            for number, ids in histories.items():
                ids += [number + 1] * 5
                told = (await rig.run(f"t{number}-{turn}", [number + 1] * 5, f"s{number}")).ids
                assert told == oracle(ids, len(told))
                ids += told
        await rig.full_pool()
        snapshot = await rig.engine.snapshot()
        assert all(books.is_balanced for books in snapshot.pools)
        assert [str(books.pool) for books in snapshot.pools] == ALL_KINDS


async def explain(rig: ServerRig, *arguments: str) -> tuple[int | None, str, str]:
    """What `tenure explain` says: exit code, output, errors."""
    command = (sys.executable, "-m", "services.cli.main", "explain", *arguments, "--target", rig.target)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_explain_command_when_of_a_pool_then_its_unit_or_what_the_server_has_instead() -> None:
    async with running_server(capabilities=CAPABILITIES) as rig:
        for flags, head in (((), "full page 1: "), (("--swa",), "SWA page 1: "), (("--states",), "state 1: ")):
            code, out, _ = await explain(rig, "1", *flags)
            assert (code, out.startswith(head)) == (0, True), out
    async with running_server() as rig:
        told = await explain(rig, "1", "--swa")
        assert told == (2, "", "tenure: --swa: this server has no SWA pages; it has pages, rows\n")


def test_explain_command_when_two_pools_are_asked_for_then_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_parser().parse_args(["explain", "1", "--states"]).pool == "mamba"
    assert build_parser().parse_args(["explain", "1", "--rows"]).pool == "rows"
    with pytest.raises(SystemExit):
        build_parser().parse_args(["explain", "1", "--states", "--rows"])
    assert "not allowed with" in capsys.readouterr().err


class LosingCore(Core):
    """Says once that it has lost unit 2 of a pool."""

    lost: PoolKind | None = None

    def check(self, level: CheckLevel) -> Report:
        if self.lost is None or level is not CheckLevel.FULL:
            return super().check(level)
        return Report(level, (Finding("census", "nobody lists it", FindingKind.LEAK, self.lost, (2,)),))

    def quarantine(self, report: Report) -> tuple[UnitHistory, ...]:
        (leak,), self.lost = report.leaks, None
        assert leak.pool is not None
        moved = MoveRecord(1, StepNo(1), "", Move.QUARANTINE, FREE, QUARANTINED)
        return (UnitHistory(leak.pool, 2, QUARANTINED, (moved,)),)


@pytest.mark.parametrize(
    ("pool", "told", "command"),
    [
        (PoolKind.FULL, "page 2 of pool full was lost", "tenure explain 2"),
        (PoolKind.SWA, "SWA page 2 of pool swa was lost", "tenure explain 2 --swa"),
        (PoolKind.MAMBA, "state 2 of pool mamba was lost", "tenure explain 2 --states"),
        (PoolKind.ROWS, "row 2 of pool rows was lost", "tenure explain 2 --rows"),
    ],
)
async def test_incident_when_a_unit_was_lost_then_named_and_the_command_that_explains_it_is_taken(
    pool: PoolKind, told: str, command: str
) -> None:
    executor = ShadowExecutor(CAPABILITIES)
    core = LosingCore(core_config(executor))
    core.lost = pool
    engine = LocalEngine(core, executor, ByteVocabulary(), config=QUICK)
    await engine.start()
    await read_all(await engine.submit(TurnRequest(TurnId("t"), pack_ids(PROMPT), max_tokens=2)))
    (incident,) = await engine.incidents()
    await engine.stop()
    assert incident.message.startswith(told)
    shown = [Incident(incident.incident_id, 0.0, incident.kind.value, incident.message, None, False)]
    assert f"next: {command}" in format_incidents(shown, 1.0).splitlines()
    assert build_parser().parse_args(command.split()[1:]).pool == pool
