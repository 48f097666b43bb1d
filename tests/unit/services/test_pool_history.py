"""`tenure pools --history`: what a person reads of it."""

import argparse
from dataclasses import replace

import pytest

from services.cli.durations import read_duration
from services.cli.pool_chart import BAR_CELLS, ROWS_MAX, format_bar, format_chart, format_legend, make_stretches
from services.cli.pool_history import format_pool_history, format_totals
from services.cli.top_view.owners import OWNERS
from services.client import Pool
from services.client.history import History, Sample, Totals

UNIX_S = 1_700_000_000.0
TOTALS = Totals(
    turns_accepted=12,
    endings={"client": 3, "stop": 7},
    moves={"park": 4, "grant": 1234},
    tokens_from_slot=75,
    tokens_from_tree=5,
    tokens_to_compute=20,
    tokens_generated=8000,
    steps=900,
    steps_failed=1,
    retractions=2,
    demotions=6,
    sessions_opened=5,
    sessions_closed={"session_closed": 4},
)


def pool(session: int = 0, uncached: int = 0, *, quarantined: int = 0, total: int = 100) -> Pool:
    total -= quarantined
    return Pool("full", total, total - session - uncached, 0, 0, session, uncached, 0, quarantined, 16)


def sample(second: int, books: Pool, steps: int = 0, step_ms: float = 0.0, moves: int = 0) -> Sample:
    return Sample(
        time_s=UNIX_S + second,
        pools=(books,),
        moves={"grant": moves},
        moved_units={},
        steps=steps,
        steps_failed=0,
        tokens_computed=0,
        tokens_generated=0,
        turns_ended=0,
        sessions_open=0,
        turns_running=0,
        turns_waiting=0,
        step_ms_p50=step_ms,
        step_ms_max=step_ms,
        first_token_ms_p50=0.0,
        first_token_ms_max=0.0,
    )


def history(*samples: Sample, totals: Totals = TOTALS) -> History:
    return History(UNIX_S + 120.0, UNIX_S, 1.0, samples, (), 0, totals)


@pytest.mark.parametrize("num_samples", [1, 2, 23, 24, 25, 60, 61, 599, 600, 3599, 3600])
def test_stretches_when_made_then_all_samples_are_in_few_rows_and_only_the_oldest_is_shorter(num_samples: int) -> None:
    samples = [sample(second, pool()) for second in range(num_samples)]
    stretches = make_stretches(samples, 1.0)
    assert [each for stretch in stretches for each in stretch.samples] == samples
    assert len(stretches) <= ROWS_MAX
    assert len({stretch.seconds for stretch in stretches[1:]}) <= 1
    assert 0 < stretches[0].seconds <= stretches[-1].seconds
    assert sum(stretch.seconds for stretch in stretches) == num_samples


def test_stretches_when_there_are_no_samples_then_none() -> None:
    assert make_stretches([], 1.0) == []


def test_bar_when_somebody_has_one_unit_of_a_thousand_then_it_has_a_sign_and_all_add_up() -> None:
    bar = format_bar(pool(session=500, uncached=1, quarantined=1, total=1000))
    assert len(bar) == BAR_CELLS
    assert (bar.count("+"), bar.count("!")) == (1, 1)
    assert abs(bar.count("#") - BAR_CELLS // 2) <= 1


def test_bar_when_the_pool_is_empty_then_as_wide() -> None:
    assert format_bar(pool(total=0)) == " " * BAR_CELLS


def test_chart_when_a_row_has_several_seconds_then_the_fullest_and_rates_over_them_all() -> None:
    seconds = [sample(second, pool()) for second in range(48)]
    seconds[0] = sample(0, pool(uncached=40), steps=10, step_ms=5.0, moves=7)
    seconds[1] = sample(1, pool(), steps=1, step_ms=9.0)
    seconds[3] = sample(3, pool(session=30))
    chart = format_chart("full", make_stretches(seconds, 1.0)).splitlines()
    assert chart[1].split() == ["until", "avail", "sess", "uncach", "moves/s", "steps/s", "step", "ms"]
    assert chart[0].split() == ["·", "#", "+"]
    assert chart[2].split()[2:] == ["60", "0", "40", "3.5", "5.5", "5.0"]
    assert chart[3].split()[2:] == ["70", "30", "0", "0.0", "0.0", "-"]


def test_chart_when_pools_are_large_and_everyone_has_some_then_a_hundred_columns_are_enough() -> None:
    large = Pool("full", 999_998, 500_000, 99_999, 99_999, 99_999, 200_001, 0, 2, 16)
    busy = sample(1, large, steps=99_999, step_ms=12_345.6, moves=99_999)
    text = format_pool_history(history(busy))
    assert max(map(len, text.splitlines())) <= 100
    assert "500k" in text


def test_history_when_shown_then_every_owner_has_a_sign_and_a_meaning() -> None:
    signs = [owner.sign for owner in OWNERS]
    assert len(set(signs)) == len(signs)
    legend = format_legend().splitlines()
    assert [line.split()[:2] for line in legend[: len(OWNERS)]] == [[owner.sign, owner.label] for owner in OWNERS]


def test_history_when_there_are_rows_too_then_work_is_told_once() -> None:
    rows = Pool("rows", 8, 8, 0, 0, 0, 0, 0, 0, 0)
    text = format_pool_history(history(replace(sample(1, pool()), pools=(pool(), rows))))
    assert "full: 100 pages of 16; the last 1 s, 1 s a line" in text
    assert "8 rows; the last 1 s" in text
    assert text.count("steps/s") == 1


def test_history_when_pages_are_out_of_circulation_then_the_head_counts_them_as_the_rows_do() -> None:
    text = format_pool_history(history(sample(1, pool(session=3, quarantined=4, total=64))))
    assert text.startswith("full: 64 pages of 16, 4 of them out of circulation;\nthe last 1 s, ")
    row = text.splitlines()[4].split()
    assert sum(map(int, row[2:5])) == 64, row


def test_totals_when_shown_then_counts_by_reason_and_tokens_by_source() -> None:
    lines = format_totals(history()).splitlines()
    assert lines[0].endswith("2 min ago:")
    assert [line.split(maxsplit=1) for line in lines[1:]] == [
        ["turns", "12 accepted, 10 ended, 2 alive"],
        ["endings", "stop 7, client 3"],
        ["contexts", "100 tokens = 75 slot (75 %) + 5 tree (5 %) + 20 computed (20 %)"],
        ["generated", "8,000 tokens"],
        ["steps", "900, of which 1 failed"],
        ["sessions", "5 opened, 4 closed (session_closed 4)"],
        ["pressure", "sessions demoted 6, turns retracted 2"],
        ["moves", "grant 1,234, park 4"],
    ]


def test_totals_when_nothing_happened_yet_then_told_as_such() -> None:
    nothing = Totals(0, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})
    text = format_pool_history(history(totals=nothing))
    assert "endings    none" in text
    assert "0 tokens = 0 slot (0 %) + 0 tree (0 %) + 0 computed (0 %)" in text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("1.5h", 5400.0), ("2", 2.0)]
)
def test_duration_when_written_as_people_do_then_seconds(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1s", "1d", "s", "1 m", "1e3", "nan", "inf", "٣s", "1m30s", "9" * 40])
def test_duration_when_it_is_none_then_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        read_duration(text)


@pytest.mark.parametrize(
    ("kind", "page_size", "told"),
    [("full", 16, "full: 100 pages of 16"), ("swa", 16, "swa: 100 pages of 16"), ("mamba", 0, "mamba: 100 states")],
)
def test_format_pool_history_when_of_any_pool_then_its_units_are_named(kind: str, page_size: int, told: str) -> None:
    books = replace(pool(session=3), kind=kind, page_size=page_size)
    assert format_pool_history(history(sample(1, books))).startswith(f"{told}; ")
