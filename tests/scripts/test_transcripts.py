"""Every transcript in this folder leaves the trace that is written under its commands."""

from pathlib import Path

import pytest

from tests.kit.transcript import run_transcript

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


def test_transcripts_when_searched_then_there_are_some() -> None:
    assert len(TRANSCRIPTS) >= 12


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_when_run_then_leaves_its_trace(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text("utf-8")
    trace = run_transcript(expected)
    if request.config.getoption("--refresh-transcripts", default=False):
        path.write_text(trace, "utf-8")
        expected = trace
    assert trace == expected
