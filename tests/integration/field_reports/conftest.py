"""What all trials share."""

from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine collects garbage as it starts. In the process of all tests that takes longer than most trials do."""
    idle = SimpleNamespace(collect=lambda: 0, freeze=lambda: None, unfreeze=lambda: None)
    monkeypatch.setattr("engine.runtime.engine.gc", idle)
