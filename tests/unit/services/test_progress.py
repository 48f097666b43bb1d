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


def test_say_when_a_bar_is_not_full_then_below_it_and_no_more_bar_once_closed() -> None:
    out = Terminal()
    show = ProgressPrinter(out)
    show.say("first")
    show(0.5, "weights")
    show.close()
    show.say("stopping")
    show(0.6, "weights")
    show.say("stopped")
    first, bar, *rest = out.getvalue().split("\n")
    assert (first, rest) == ("first", ["stopping", "stopped", ""])
    assert bar.endswith("50% weights")


def test_say_when_a_bar_was_full_then_no_empty_line() -> None:
    out = Terminal()
    show = ProgressPrinter(out)
    show(1.0, "done")
    show.say("ready")
    assert out.getvalue().endswith("100% done\nready\n")
