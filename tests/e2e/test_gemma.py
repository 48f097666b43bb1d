"""Gemma 3 270M behind a real server: a model with windows, without a chat template."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.client import TenureError, Turn, connect
from tests.kit.gemma import needs_gemma, reference_items
from tests.kit.server_process import ready_server

PAST_THE_WINDOW = next(item for item in reference_items() if item.name == "apache_700")
SHORT = reference_items()[0]

pytestmark = [pytest.mark.exact, needs_gemma]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    options = ("--context-len", "1024", "--pool-tokens", "4096", "--full-check-steps", "16")
    with ready_server("--model", "gemma3", *options) as (_server, target):
        yield target


async def read_ids(turn: Turn) -> list[int]:
    return [token_id async for piece in turn for token_id in piece.token_ids]


async def test_turn_when_it_crosses_the_window_then_is_the_references(target: str) -> None:
    item = PAST_THE_WINDOW
    async with connect(target) as client, client.session(streaming=True) as session:
        turn = session.turn(token_ids=item.prompt_ids, max_tokens=len(item.output_ids))
        assert await read_ids(turn) == item.output_ids


async def test_turn_when_its_text_is_given_then_is_the_references_text(target: str) -> None:
    async with connect(target) as client:
        assert SHORT.prompt is not None
        turn = client.generate(text=SHORT.prompt, max_tokens=len(SHORT.output_ids))
        assert "".join([piece.text async for piece in turn]) == SHORT.text


async def test_session_when_it_goes_on_past_the_window_then_is_a_cold_run_of_its_history(target: str) -> None:
    """The second turn reads the window of the first from its session."""
    history = PAST_THE_WINDOW.prompt_ids
    async with connect(target) as client:
        async with client.session(streaming=True) as session:
            first = await read_ids(session.turn(token_ids=history[:600], max_tokens=8))
            turn = session.turn(token_ids=history[600:], max_tokens=24)
            second = await read_ids(turn)
        assert turn.usage is not None
        assert turn.usage.tokens_from_slot > 590
        cold = client.generate(token_ids=[*history[:600], *first, *history[600:]], max_tokens=24)
        assert await read_ids(cold) == second


async def test_chat_when_the_model_has_no_template_then_is_refused_by_name(target: str) -> None:
    async with connect(target) as client, client.session(streaming=True) as session:
        assert "chat" not in (await client.model()).features
        with pytest.raises(TenureError, match="this model has no chat template"):
            await read_ids(session.turn("Hello!", max_tokens=1))


def test_demo_when_the_model_can_not_chat_then_goes_on_with_texts() -> None:
    command = (sys.executable, "-m", "services.cli.main", "demo", "--model", "gemma3", "--max-tokens", "8")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This model has no chat template: it goes on with texts." in done.stdout
    assert "text> The capital of France is" in done.stdout
    assert done.stdout.count("[turn ") == 3


def test_demo_when_there_is_no_such_model_then_names_those_there_are() -> None:
    command = (sys.executable, "-m", "services.cli.main", "demo", "--model", "no-such-model")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "no file or directory no-such-model; known names are gemma3, smollm2" in done.stdout
