"""What a step came to, as data."""

import pytest

from engine.core.ids import StepNo
from engine.core.plan import REASON_CHARS_MAX, StepFailure


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("out of memory", "out of memory"),
        ("p\ud800q", "p\\ud800q"),
        ("x" * (REASON_CHARS_MAX + 1), "x" * REASON_CHARS_MAX + "..."),
        ("x" * REASON_CHARS_MAX, "x" * REASON_CHARS_MAX),
        ("", ""),
    ],
)
def test_failure_when_its_reason_is_any_text_then_one_that_can_be_sent(given: str, kept: str) -> None:
    """It goes to clients, to logs and into spans of other turns' batches."""
    assert StepFailure(StepNo(1), given).reason == kept
