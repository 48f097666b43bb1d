"""Rules for all rooms: time limits and markers by folder, and parts that may be missing."""

from pathlib import Path

import pytest

from tests.kit.requirements import REQUIRE_ALL, check_part

ROOT = Path(__file__).parent
LIMIT_S = {"unit": 20, "scripts": 20, "sim": 20, "integration": 300, "e2e": 300}
"""Seconds that one test of a room may take, unless it carries a limit of its own."""
MARKED_ROOMS = ("integration", "e2e")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require", choices=[REQUIRE_ALL], default=None, help="fail, not skip, when a part is missing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(ROOT):
            continue
        room = item.path.relative_to(ROOT).parts[0]
        if room in LIMIT_S and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S[room]))
        if room in MARKED_ROOMS:
            item.add_marker(room)


def pytest_runtest_setup(item: pytest.Item) -> None:
    require = item.config.getoption("--require")
    for mark in item.iter_markers("requires"):
        check_part(*mark.args, **mark.kwargs, require=require)
