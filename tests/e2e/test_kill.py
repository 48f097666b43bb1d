"""The kill-tests in short: a server is hurt in each way we know, and each trial asserts what has to hold."""

import pytest

from tests.kill.row import QUICK
from tests.kill.trials import PARTS, Part, Result, play
from tests.kill.trials_output import LOG_UNREAD

QUICK_PARTS = [part for part in PARTS if part is not LOG_UNREAD]
"""`test_serve` has that one already."""


@pytest.mark.parametrize("part", QUICK_PARTS, ids=lambda part: part.name)
async def test_server_when_hurt_then_health_dump_and_recovery_are_as_stated(part: Part) -> None:
    results: list[Result] = []
    await play(part, QUICK, results.append)
    assert results
    assert [result.failure for result in results if result.row is None] == []
