"""Where a command shows what: text, notes, complaints, each in lines of its own."""

import io

from services.cli.terminal import Terminal


def test_complain_when_in_the_middle_of_a_line_of_the_same_stream_then_on_a_new_one() -> None:
    out = io.StringIO()
    terminal = Terminal(out, out, out)
    terminal.say("an ans")
    terminal.complain("reconnecting")
    terminal.say("wer")
    terminal.end_line()
    terminal.end_line()
    terminal.note("books")
    assert out.getvalue() == "an ans\nreconnecting\nwer\nbooks\n"


def test_complain_when_the_text_has_a_stream_of_its_own_then_the_text_stays_whole() -> None:
    text, aside = io.StringIO(), io.StringIO()
    terminal = Terminal(text, aside, aside)
    terminal.say("an ans")
    terminal.complain("reconnecting")
    terminal.say("wer\n")
    terminal.end_line()
    assert (text.getvalue(), aside.getvalue()) == ("an answer\n", "reconnecting\n")


def test_note_when_quiet_then_nothing() -> None:
    out = io.StringIO()
    Terminal(out, None, out).note("books")
    assert out.getvalue() == ""
