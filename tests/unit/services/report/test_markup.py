"""Text that may come from anybody becomes harmless."""

import pytest

from services.report.markup import element, escape_text, format_px, text, title
from tests.unit.services.report.histories import read_picture


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("<script>", "&lt;script&gt;"),
        ("a & b", "a &amp; b"),
        ('say "it\'s"', "say &quot;it&#x27;s&quot;"),
        ("bell\x07", "bell\ufffd"),
        ("two\nlines", "two\ufffdlines"),
        ("turned \u202e around", "turned \ufffd around"),
        ("half \ud800", "half \ufffd"),
        ("Grüße 漢字", "Grüße 漢字"),
    ],
)
def test_escape_text_when_it_could_do_harm_then_it_is_shown_instead(given: str, told: str) -> None:
    assert escape_text(given) == told


def test_element_when_an_attribute_is_hostile_then_it_stays_an_attribute() -> None:
    tree = read_picture(element("g", class_='"><script>', data_name="a<b", id=None))
    assert tree.attrib == {"class": '"><script>', "data-name": "a<b"}


def test_title_when_it_has_lines_then_each_is_escaped_and_they_stay_apart() -> None:
    assert title("<a>", "b") == "<title>&lt;a&gt;\nb</title>"


def test_text_when_numbers_are_long_then_a_tenth_of_a_pixel_is_kept() -> None:
    assert text(1.23456, 2.0, "x") == '<text x="1.2" y="2">x</text>'
    assert format_px(10.04) == "10"
