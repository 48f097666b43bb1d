"""Progress, on a terminal and in a log."""

import io

from services.cli.progress import ProgressPrinter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_when_not_a_terminal_then_a_line_a_quarter() -> None:
    out = io.StringIO()
    show = ProgressPrinter(out)
    for percent in range(101):
        show(percent / 100, "weights")
    assert out.getvalue().splitlines() == [f"loading {percent:3}% weights" for percent in (0, 25, 50, 75, 100)]


def test_progress_when_a_terminal_then_one_line_is_rewritten() -> None:
    out = Terminal()
    show = ProgressPrinter(out)
    show(0.5, "weights")
    show(1.0, "done")
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith("100% done\n")
