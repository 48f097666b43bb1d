"""A server that can not start says why, once, and is taken apart in order."""

import asyncio
from dataclasses import replace

import pytest

from engine.core.errors import Refusal, RefusalReason
from engine.executor.gguf import GgufError
from services.config import ServeConfig
from services.loading import LoadedModel, Progress
from services.server import Announcer, Server
from tests.kit.server_rig import CONFIG, byte_tokenizer
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities

ANNOUNCER = Announcer(lambda _line: None, lambda _done, _what: None)


@pytest.mark.parametrize(
    "error",
    [
        GgufError("the file is cut short"),
        RuntimeError("the allocator has no memory"),
        Refusal(RefusalReason.PROMPT_EXCEEDS_CONTEXT, "the prompt does not fit"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_load_when_it_fails_with_whatever_then_the_reason_is_kept_and_the_exit_code_is_1(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def load(_config: ServeConfig, _progress: Progress) -> LoadedModel:
        raise error

    server = Server(CONFIG, ANNOUNCER, load)
    assert await server.run(asyncio.Event()) == 1
    assert server.start_failure == str(error)
    assert f"event=start_failed reason={type(error).__name__}" in caplog.text
    assert ("Traceback" in caplog.text) == (type(error) is RuntimeError)


async def test_warm_up_when_the_model_has_no_room_for_it_then_said_so_and_the_exit_code_is_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def load(_config: ServeConfig, _progress: Progress) -> LoadedModel:
        capabilities = replace(shadow_capabilities(), context_len=1)
        return LoadedModel(ShadowExecutor(capabilities), byte_tokenizer(), None, ())

    server = Server(CONFIG, ANNOUNCER, load)
    assert await server.run(asyncio.Event()) == 1
    assert server.start_failure is not None
    assert "context" in server.start_failure
    assert "event=start_failed reason=Refusal" in caplog.text
