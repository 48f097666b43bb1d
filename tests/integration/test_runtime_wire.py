"""The whole server over the shadow executor: what is on the wire beside turns, and races that need many rounds."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest
from grpc import aio

from engine.core.findings import CheckLevel, Finding, Report
from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client import FinishReason, TenureError
from services.server import SERVICES
from services.tokenization.chat import ChatMessage, ChatTemplate, RenderedTurn
from services.tokenization.tokenizer import Tokenizer
from tests.kit.runtime_rig import oracle
from tests.kit.server_rig import CONFIG, ServerRig, list_services, running_server

PROMPT = [7, 1, 9, 4]


async def test_reflection_when_on_then_every_service_that_answers_is_told() -> None:
    async with running_server() as rig:
        assert set(await list_services(rig.target)) == {*SERVICES, "grpc.reflection.v1alpha.ServerReflection"}


async def test_reflection_when_off_then_unimplemented() -> None:
    async with running_server(replace(CONFIG, reflection=False)) as rig:
        with pytest.raises(aio.AioRpcError) as caught:
            await list_services(rig.target)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_model_and_config_when_asked_then_what_is_in_force() -> None:
    async with running_server(replace(CONFIG, context_len=100, streaming_sessions=False)) as rig:
        model = await rig.client.model()
        assert (model.context_len, model.vocab_size, model.page_size) == (100, 256, 4)
        assert model.pools == {"full": 63, "rows": 7}
        assert model.name == rig.executor.capabilities.name
        assert {"sampling", "fork", "truncate", "prefix_cache"} <= set(model.features)
        assert "streaming_sessions" not in model.features
        settings = await rig.client.config()
        assert (settings["context_len"], settings["streaming_sessions"], settings["rows"]) == ("100", "no", "7")
        assert list(settings) == list(CONFIG.effective())


async def test_check_when_asked_then_run_now_and_counted() -> None:
    async with running_server() as rig:
        before = (await rig.client.pools()).checks_run
        report = await rig.client.check()
        assert (report.is_clean, report.checks_run) == (True, before + 1)


async def test_check_when_something_does_not_hold_then_law_and_message_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Report(CheckLevel.FULL, (Finding("census", "page 3 has no owner"),))
    async with running_server() as rig:
        with monkeypatch.context() as patch:
            patch.setattr("engine.runtime.engine.Core.check", lambda _core, _level: found)
            report = await rig.client.check()
        assert [(finding.law, finding.message) for finding in report.findings] == [("census", "page 3 has no owner")]


async def test_sessions_when_listed_in_pages_then_each_once_and_truthful() -> None:
    async with running_server() as rig:
        names = [f"s{number}" for number in range(5)]
        sessions = [rig.client.session(name, streaming=name != "s1") for name in names]
        for session in reversed(sessions):
            await session.open()
        turn = sessions[2].turn(token_ids=PROMPT, max_tokens=3)
        await rig.collect(turn)
        listed = [info async for info in rig.client.sessions(page_size=2)]
        assert [info.session_id for info in listed] == names
        assert [info.streaming for info in listed] == [True, False, True, True, True]
        assert (listed[2].session_len, listed[2].kv_state, listed[2].kv_tokens) == (7, "held", 6)
        assert listed[2].kv_pages == 1, "the first page of 4 tokens is the prefix cache's"
        assert (listed[0].kv_state, listed[0].kv_pages, listed[0].live_turn_ids) == ("none", 0, ())
        assert await rig.client.find_session("s2") == listed[2]
        with pytest.raises(TenureError) as caught:
            await rig.client.find_session("nobody")
        assert (caught.value.reason, caught.value.code) == ("SESSION_UNKNOWN", grpc.StatusCode.NOT_FOUND)
        with pytest.raises(TenureError) as caught:
            [info async for info in rig.client.sessions(page_size=1001)]
        assert (caught.value.field, caught.value.metadata) == ("page_size", {"value": "1001", "limit": "1000"})


async def test_session_when_a_turn_runs_then_it_is_named() -> None:
    async with running_server() as rig, rig.client.session("s") as session:
        rig.executor.faults.delay_s = lambda _plan: 0.01
        pieces = aiter(session.turn(token_ids=PROMPT, turn_id="t", max_tokens=50))
        await anext(pieces)
        info = await rig.client.find_session("s")
        assert (info.live_turn_ids, info.kv_state) == (("t",), "lent")


async def start_and_cancel(rig: ServerRig, stub: "generate_pb2_grpc.GenerateAsyncStub", turn_id: str) -> None:
    """Begins a long turn, and has its abort on the way at once."""
    sampling = types_pb2.SamplingParams(max_tokens=100)
    request = generate_pb2.GenerateRequest(
        turn_id=turn_id, tokens=types_pb2.TokenInput(token_ids=PROMPT), sampling=sampling
    )
    call = stub.Generate(request)
    first = await call.read()
    assert isinstance(first, generate_pb2.GenerateResponse)
    assert first.started.turn_id == turn_id
    await stub.Abort(generate_pb2.AbortRequest(turn_id=turn_id))
    call.cancel()


async def test_turn_id_when_started_cancelled_and_started_again_500_times_then_every_second_one_completes() -> None:
    """ABO-05 (vllm-project/vllm#23697)."""
    async with running_server(replace(CONFIG, full_check_steps=16)) as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.001
        async with aio.insecure_channel(rig.target) as channel:
            stub = generate_pb2_grpc.GenerateStub(channel)
            for round_ in range(500):
                await start_and_cancel(rig, stub, f"x{round_}")
                turn = rig.client.generate(token_ids=PROMPT, turn_id=f"x{round_}", max_tokens=5)
                assert await rig.collect(turn) == oracle(PROMPT, 5)
                assert turn.attempt == 2
        stats = await rig.client.pools()
        assert (stats.turns_running, stats.turns_waiting, stats.find("full").uncached) == (0, 0, 0)


async def test_turn_id_when_it_is_always_the_same_then_attempts_are_counted_and_the_last_completes() -> None:
    async with running_server(replace(CONFIG, full_check_steps=16)) as rig:
        rig.executor.faults.delay_s = lambda _plan: 0.001
        async with aio.insecure_channel(rig.target) as channel:
            stub = generate_pb2_grpc.GenerateStub(channel)
            for _ in range(100):
                await start_and_cancel(rig, stub, "x")
        turn = rig.client.generate(token_ids=PROMPT, turn_id="x", max_tokens=5)
        assert await rig.collect(turn) == oracle(PROMPT, 5)
        assert (turn.attempt, turn.finish_reason) == (101, FinishReason.LENGTH)


class GatedTemplate(ChatTemplate):
    """Shows three characters of a message, and can be held in the middle of a rendering."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__("{% for m in messages %}[{{ m.content[:3] }}]{% endfor %}", tokenizer, {})
        self.gate = threading.Event()
        self.tails: list[int | None] = []
        """The last id of the history in each rendering."""

    def render_next_turn(self, messages: Sequence[ChatMessage], history_tail_id: int | None) -> RenderedTurn:
        self.tails.append(history_tail_id)
        self.gate.wait(10)
        return super().render_next_turn(messages, history_tail_id)


async def test_chat_when_the_session_moves_on_while_it_is_rendered_then_rendered_anew() -> None:
    templates: list[GatedTemplate] = []

    def build(tokenizer: Tokenizer) -> ChatTemplate:
        templates.append(GatedTemplate(tokenizer))
        return templates[0]

    async with running_server(build_template=build) as rig, rig.client.session("s") as session:
        template = templates[0]
        first = await rig.collect(session.turn(token_ids=PROMPT, max_tokens=3))
        # Long enough to be rendered off the loop, so that others are served meanwhile.
        chatting = asyncio.create_task(rig.collect(rig.client.session("s").turn("abc" + "x" * 5000, max_tokens=3)))
        while not template.tails:  # noqa: ASYNC110 - it happens in a thread of the server
            await asyncio.sleep(0.001)
        second = await rig.collect(session.turn(token_ids=[5], max_tokens=3))
        template.gate.set()
        answer = await chatting
        assert template.tails == [first[-1], second[-1]]
        history = [*PROMPT, *first, 5, *second, *b"][abc]"]
        assert answer == oracle(history, 3)
