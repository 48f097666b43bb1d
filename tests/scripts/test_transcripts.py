"""Each transcript, run again, leaves the trace that is written under its commands."""

from pathlib import Path

import pytest

from tests.kit.transcript import run_transcript

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
UNDECORATED = ("streaming_sessions=off",)
"""Takes the slots off the cache."""


def opens_streaming(path: Path) -> bool:
    lines = path.read_text("utf-8").splitlines()
    return any(line.startswith("open ") and "streaming" in line.split() for line in lines)


def as_ordinary(text: str) -> str:
    """The same commands with ordinary sessions only, without expectations: what is known of slots holds no more."""
    lines = [line for line in text.splitlines() if not line.startswith(("expect-", "  "))]
    return "\n".join(line.replace(" streaming", " ordinary") if line.startswith("open ") else line for line in lines)


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


@pytest.mark.parametrize(
    "path", [path for path in TRANSCRIPTS if not opens_streaming(path)], ids=lambda path: path.stem
)
def test_transcript_when_cache_has_no_slots_then_leaves_the_same_trace(path: Path) -> None:
    expected = path.read_text("utf-8")
    assert run_transcript(expected, UNDECORATED) == expected


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_when_all_sessions_are_ordinary_then_slots_make_no_difference(path: Path) -> None:
    text = as_ordinary(path.read_text("utf-8"))
    assert run_transcript(text) == run_transcript(text, UNDECORATED)
