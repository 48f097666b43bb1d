"""The benchmarks run, tell what page 11 asks for, and draw what they told. Nothing here judges a time."""

import json
from pathlib import Path

import pytest

from benchmarks.core.__main__ import main
from benchmarks.core.curves import PEER, plots
from benchmarks.core.results import Result, show_us, table
from benchmarks.core.svg import HEIGHT, WIDTH, Axis, Line, Plot, Style, draw, show_size
from benchmarks.core.timing import CLOCK_COST_NS, Timing, measure, summarize

OPERATIONS = {
    "evict 64 tokens",
    "allocate and free 256 token slots",
    "match, full hit",
    "insert 2,048 shared + 128 new",
    "lend a held slot and match",
    "look up drafts",
    "compile and queue a session turn",
    "admit and plan a session turn",
    "decode step",
    "decode step: next_plan",
    "decode step: advance",
    "decode step: check",
    "decode step: take_events",
    "full check, 16 sessions",
    "owners check, 16 sessions",
}
CURVES = {"evict", "allocate", "match", "lend", "turn", "drafts", "step", "step-phases", "check"}


def result(median_us: float, target_us: float | None = None, size: int = 1, variant: str = "") -> Result:
    return Result("evict 64 tokens", variant, size, "leaves", Timing(median_us, 20.0, 30.0, 5), target_us, 400.0)


def test_quick_run_when_written_then_every_operation_is_told_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--out", str(tmp_path), "--commit", "abc123"])
    told = json.loads((tmp_path / "core.json").read_text("utf-8"))
    assert {entry["operation"] for entry in told["results"]} == OPERATIONS
    assert told["commit"] == "abc123"
    assert told["hardware"].keys() == {"cpu", "cores", "system", "python"}
    assert {path.name for path in tmp_path.glob("*.svg")} == {f"core-{name}.svg" for name in CURVES}
    shown = capsys.readouterr().out
    assert all(operation in shown for operation in OPERATIONS)


def test_quick_run_when_one_group_is_asked_for_then_no_other_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--only", "tree"])
    shown = capsys.readouterr().out
    assert "evict 64 tokens" in shown
    assert "decode step" not in shown


def test_measure_when_run_then_warms_up_and_pairs_before_with_after() -> None:
    calls: list[str] = []
    timing = measure(
        lambda: calls.append("run"),
        10,
        before=lambda: calls.append("before"),
        after=lambda: calls.append("after"),
        calls=2,
    )
    assert timing.repetitions == 10
    assert calls == ["before", "run", "run", "after"] * 12


def test_summarize_when_given_times_then_medians_and_percentiles_are_per_call_less_the_clock() -> None:
    times_ns = [int(CLOCK_COST_NS) + 2000 * count for count in range(1, 101)]
    timing = summarize(times_ns, calls=2)
    assert timing.median_us == pytest.approx(50.5, abs=0.01)
    assert timing.p99_us == pytest.approx(100.0, abs=0.01)
    assert timing.max_us == pytest.approx(100.0, abs=0.01)


@pytest.mark.parametrize(
    ("median_us", "target_us", "verdict"), [(9.0, 10.0, "met"), (11.0, 10.0, "MISSED"), (9.0, None, "")]
)
def test_table_when_shown_then_each_line_has_its_verdict(
    median_us: float, target_us: float | None, verdict: str
) -> None:
    line = table([result(median_us, target_us)]).splitlines()[1]
    assert line.endswith(verdict or "400 µs")
    assert show_us(median_us) in line


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [(None, "-"), (0.5, "0.5 µs"), (999.0, "999 µs"), (1500.0, "1.5 ms"), (999_900.0, "1000 ms"), (2e6, "2 s")],
)
def test_time_when_shown_then_has_a_unit_that_fits(time_us: float | None, shown: str) -> None:
    assert show_us(time_us) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(1 << 20, "1 Mi"), (65_536, "64 Ki"), (5000, "5k"), (16, "16"), (1234, "1,234")]
)
def test_size_when_shown_then_is_short_where_it_is_round(size: int, shown: str) -> None:
    assert show_size(size) == shown


def test_axis_when_asked_then_decades_are_equally_far_apart() -> None:
    axis = Axis(0.0, 2.0, 100.0, 300.0)
    assert [axis.at(value) for value in (1, 10, 100)] == pytest.approx([100.0, 200.0, 300.0])


def test_plot_when_drawn_then_marks_are_inside_and_labels_apart() -> None:
    lines = (
        Line("measured", ((1000.0, 7.0), (50_000.0, 9.0))),
        Line("target", ((1000.0, 10.0), (50_000.0, 10.0)), Style.TARGET),
        Line("peer & co", ((1000.0, 380.0),), Style.PEER),
    )
    drawn = draw(Plot("Evict", "here", "leaves", lines))
    assert drawn.count("<polyline") == 3
    assert drawn.count("<circle") == 2
    assert "peer &amp; co" in drawn
    places = [tag.split('"') for tag in drawn.splitlines() if tag.startswith("<circle")]
    assert all(0 < float(parts[1]) < WIDTH and 0 < float(parts[3]) < HEIGHT for parts in places)
    heights = {line.label: _label_height(drawn, line.label) for line in lines[:2]}
    assert abs(heights["measured"] - heights["target"]) >= 15


def _label_height(drawn: str, label: str) -> float:
    (line,) = (line for line in drawn.splitlines() if line.endswith(f">{label}</text>"))
    return float(line.split('y="')[1].split('"')[0])


def test_curves_when_variants_share_a_target_then_it_is_drawn_once() -> None:
    shared = [result(8.0, 10.0, size, variant) for variant in ("a", "b") for size in (1000, 5000)]
    ((name, plot),) = plots(shared, "a machine")
    assert name == "evict"
    assert [line.label for line in plot.lines] == ["a", "b", "target", PEER]
    apart = [*shared, result(8.0, 12.0, 9000, "b")]
    ((_, plot),) = plots(apart, "a machine")
    assert [line.label for line in plot.lines] == ["a", "b", "target, a", "target, b", PEER]
