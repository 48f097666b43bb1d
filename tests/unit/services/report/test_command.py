"""`tenure report` writes its page whole or not at all."""

from datetime import UTC
from pathlib import Path

import pytest

from services.cli.report_page import describe_page, write_whole
from services.report.scales import Span


def test_write_whole_when_a_page_is_there_then_it_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_whole(path, "Grüße") == 7
    assert path.read_text(encoding="utf-8") == "Grüße"
    assert list(tmp_path.iterdir()) == [path]


def test_write_whole_when_it_can_not_be_written_then_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        write_whole(path, "page")
    assert list(tmp_path.iterdir()) == [path]


def test_describe_page_when_written_then_where_which_span_and_how_large() -> None:
    span = Span(1_800_000_000.0, 1_800_000_600.0, UTC)
    told = describe_page(Path("report.html"), span, 312_400)
    assert told == "report.html: 08:00:00 to 08:10:00 (10 min), 312 kB"
