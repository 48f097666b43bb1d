"""A short soak of a real server: everything that a long one shows but the slope of its memory."""

from pathlib import Path

from tests.soak.report import Plan, describe
from tests.soak.run import soak
from tests.soak.verdict import judge

SECONDS = 40


async def test_server_when_under_mixed_load_with_failing_forwards_then_no_leak_no_conflict_and_one_ending_a_turn(
    tmp_path: Path,
) -> None:
    """Sessions opened, turned, aborted, forked, rewound, expired and demoted; each 33rd forward raises."""
    told: list[str] = []
    evidence = await soak(Plan(minutes=SECONDS / 60, seed=1, num_clients=6), tmp_path / "server.log", told.append)
    verdicts = judge(evidence, needs_slope=False)
    assert all(verdict.holds for verdict in verdicts), "\n" + describe(verdicts)
    assert len(evidence.readings) >= 8
    assert all(reading.resident_bytes > 0 < reading.open_files for reading in evidence.readings)
