"""The page and the picture of a soak."""

import re
from dataclasses import replace

from tests.soak.memory import MIB, Reading, resident_trend
from tests.soak.picture import draw
from tests.soak.report import Plan, describe, to_json, write_page
from tests.soak.verdict import judge
from tests.unit.soak.test_judge import good

READINGS = tuple(
    Reading(5.0 * place, (500 + place) * MIB, 400 * MIB, 100 * MIB, threads=20, open_files=16) for place in range(61)
)
PLAN = Plan(minutes=5.0, seed=3, num_clients=6)


def test_page_when_written_then_it_says_how_it_was_made_each_verdict_and_both_counts() -> None:
    evidence = replace(good(), readings=READINGS, trend=resident_trend(READINGS), exit_code=1)
    verdicts = judge(evidence)
    page = write_page(PLAN, evidence, verdicts, "soak.svg")
    assert "python -m tests.soak --minutes 5 --seed 3 --clients 6" in page
    assert "![Resident memory over time](soak.svg)" in page
    assert "resident memory 500.0 to 560.0 MiB, threads 20 to 20" in page
    assert "| SIGTERM ends it well | **fails** |" in page
    assert "| replaced | 1 | 1 |" in page
    assert all(f"| {verdict.name} |" in page for verdict in verdicts)
    assert describe(verdicts).count("FAIL") == 2, "the exit code and the slope"


def test_file_when_written_then_all_readings_and_counts_are_in_it() -> None:
    evidence = replace(good(), readings=READINGS)
    told = to_json(PLAN, evidence, judge(evidence, needs_slope=False))
    assert isinstance(told["readings"], list)
    assert len(told["readings"]) == 61
    assert {"ending": "stop", "client": 1, "server": 1} in told["endings"]  # type: ignore[operator]  # a list, as above


def test_picture_when_drawn_then_memory_its_trend_and_round_numbers_on_both_axes() -> None:
    picture = draw(READINGS, resident_trend(READINGS), "6 clients")
    memory, trend = re.findall(r'<polyline points="([^"]+)"', picture)
    assert (len(memory.split()), len(trend.split())) == (61, 2)
    labels = re.findall(r">([\d,.]+) MiB<", picture)
    assert labels == ["500", "520", "540", "560"]
    assert draw(READINGS, None, "6 clients").count("<polyline") == 1
