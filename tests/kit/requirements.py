"""Parts that a machine may lack: without them a test is skipped with a reason, or fails when all parts are required."""

import pytest

REQUIRE_ALL = "all"


def requires(name: str, *, present: bool, reason: str) -> pytest.MarkDecorator:
    """Marks tests that need a part of this name; `reason` says what is lost without it."""
    return pytest.mark.requires(name, present=present, reason=reason)


def check_part(name: str, *, present: bool, reason: str, require: str | None) -> None:
    """Returns when the part is there. Raises pytest's skip without it, pytest's failure when `require` is "all"."""
    if present:
        return
    message = f"{name} is missing: {reason}"
    if require == REQUIRE_ALL:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
