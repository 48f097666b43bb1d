"""The whole server over the shadow executor: what clients are told when something of ours breaks, and the exit code."""

import asyncio
import logging
from dataclasses import replace

import grpc
import pytest

from services.client import FinishReason, TenureError
from services.config import ServeConfig
from services.loading import LoadedModel, LoadingCrashed, Progress
from services.server import Announcer, Server
from tests.kit.server_rig import CONFIG, running_server

PROMPT = [7, 1, 9, 4]


async def test_forward_when_it_fails_then_internal_with_its_reason_and_the_server_goes_on() -> None:
    async with running_server() as rig:
        step = rig.executor.submitted[-1].step
        rig.executor.faults.failing_steps = {step + 3: "not finite"}
        turn = rig.client.generate(token_ids=PROMPT, max_tokens=50)
        with pytest.raises(TenureError) as caught:
            await rig.collect(turn)
        assert (caught.value.reason, caught.value.code) == ("FORWARD_FAILED", grpc.StatusCode.INTERNAL)
        assert "not finite" in caught.value.message
        assert turn.finish_reason is FinishReason.ABORT
        assert len(await rig.collect(rig.client.generate(token_ids=PROMPT, max_tokens=5))) == 5
        rig.stop.set()
        assert await rig.run == 0


async def test_executor_when_lost_then_internal_with_an_incident_and_exit_code_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """WDG-01 (sgl-project/sglang#6624)."""
    caplog.set_level(logging.ERROR)
    async with running_server() as rig:
        rig.executor.hold()
        reading = asyncio.create_task(rig.collect(rig.client.generate(token_ids=PROMPT)))
        while not rig.executor.num_in_flight:  # noqa: ASYNC110 - the executor has no event for it
            await asyncio.sleep(0.001)
        rig.executor.faults.lost = RuntimeError("the device is gone")
        rig.executor.let_go()
        with pytest.raises(TenureError) as caught:
            await reading
        assert (caught.value.reason, caught.value.code) == ("ENGINE_FAILED", grpc.StatusCode.INTERNAL)
        assert "the device is gone" not in caught.value.message
        assert caught.value.metadata["incident_id"] in caplog.text
        assert await rig.run == 1
        with pytest.raises(TenureError):
            await rig.client.is_ready()


async def test_call_when_a_servicer_breaks_then_internal_with_an_incident_that_is_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_server() as rig:
        monkeypatch.setattr("services.admin.encode_pools", lambda *_told: 1 // 0)
        with pytest.raises(TenureError) as caught:
            await rig.client.pools()
        assert (caught.value.reason, caught.value.code) == ("INTERNAL_ERROR", grpc.StatusCode.INTERNAL)
        assert caught.value.metadata["incident_id"] in caplog.text
        assert "ZeroDivisionError" in caplog.text
        assert "Zero" not in caught.value.message


async def test_chat_when_the_model_has_no_template_then_said_so() -> None:
    async with running_server() as rig, rig.client.session() as session:
        with pytest.raises(TenureError) as caught:
            await rig.collect(session.turn("Hello!"))
        assert (caught.value.reason, caught.value.field) == ("CHAT_UNSUPPORTED", "chat")
        assert len(await rig.collect(session.turn(text="Hello!", max_tokens=3))) == 3


async def test_prompt_when_it_can_never_fit_the_pool_then_out_of_range() -> None:
    async with running_server() as rig:
        with pytest.raises(TenureError) as caught:
            await rig.collect(rig.client.generate(token_ids=[1] * 200))
        assert caught.value.code is grpc.StatusCode.OUT_OF_RANGE


@pytest.mark.parametrize("error", [LoadingCrashed("x"), OSError("disk"), ValueError("sizes")])
async def test_load_when_it_fails_then_exit_code_1_and_a_line(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def load(_config: ServeConfig, _progress: Progress) -> LoadedModel:
        raise error

    announcer = Announcer(lambda _line: None, lambda _done, _what: None)
    assert await Server(CONFIG, announcer, load).run(asyncio.Event()) == 1
    assert f"event=start_failed reason={type(error).__name__}" in caplog.text


async def test_executor_when_lost_under_many_streams_then_one_trace_and_one_incident_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    async with running_server() as rig:
        rig.executor.hold()
        turns = [rig.client.generate(token_ids=[*PROMPT, number]) for number in range(12)]
        reading = [asyncio.create_task(rig.collect(turn)) for turn in turns]
        while not all(turn.max_tokens for turn in turns):  # noqa: ASYNC110 - the turns have no event for it
            await asyncio.sleep(0.001)
        rig.executor.faults.lost = RuntimeError("the device is gone")
        rig.executor.let_go()
        ends = await asyncio.gather(*reading, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, TenureError)]
        assert [error.reason for error in errors] == ["ENGINE_FAILED"] * 12
        (incident_id,) = {error.metadata["incident_id"] for error in errors}
        assert await rig.run == 1
    (halted,) = (record for record in caplog.records if "event=engine_halted" in record.getMessage())
    assert f"incident_id={incident_id}" in halted.getMessage()
    assert "the device is gone" in halted.getMessage()
    assert [record for record in caplog.records if record.exc_info] == [halted]


async def test_stop_when_calls_still_come_then_they_hear_why() -> None:
    async with running_server() as rig:
        rig.stop.set()
        reasons: list[str] = []
        while len(reasons) < 3:
            try:
                await rig.client.generate(token_ids=PROMPT, max_tokens=1).text()
            except TenureError as error:
                reasons.append(error.reason)
        assert reasons == ["SERVER_STOPPING"] * 3
        assert await rig.run == 0


async def test_config_when_asked_then_the_port_that_was_taken_and_the_context_that_the_model_allows() -> None:
    async with running_server(replace(CONFIG, context_len=100_000)) as rig:
        settings = await rig.client.config()
        assert settings["port"] == rig.target.rpartition(":")[2]
        assert settings["context_len"] == str((await rig.client.model()).context_len) != "100000"
