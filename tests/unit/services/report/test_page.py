"""The page as a whole: one file, well formed, that stays small and shows what anybody may have named."""

import json
import random
import re
from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from services.client.history import History, SessionFact, Totals
from services.client.pools import Pool
from services.report.activity import Series, Strip
from services.report.numbers import format_numbers
from services.report.page import LANES_MAX, Server, render_report
from tests.unit.services.report.histories import (
    SERVER,
    START_S,
    StrictPage,
    fact,
    find_all,
    full,
    history,
    idle,
    incident,
    pictures,
    sample,
    timeline_of,
    titles,
    words,
    working,
)

HOSTILE = '"><script>alert(1)</script>\u202e\x00&amp;</title></svg>'
LIFE = (fact(1, "opened"), fact(2, "kv", "lent"), fact(3, "kv", "held"), fact(3, "park", units=2))


@pytest.mark.parametrize(
    "told",
    [history([]), history(idle(1)), history(idle(30)), history(working(1)), history(working(1500), LIFE)],
    ids=["no sample", "one sample", "idle", "one busy sample", "more samples than pixels"],
)
def test_render_report_when_given_any_history_then_html_and_pictures_are_well_formed(told: History) -> None:
    page = render_report(told, [incident(0.5)], SERVER)
    read = StrictPage(page)
    assert read.tags[:3] == ["html", "head", "meta"]
    assert len(pictures(page)) == page.count('class="picture"')


def test_render_report_when_names_are_hostile_then_they_are_shown_and_do_nothing() -> None:
    facts = [fact(1, "opened", HOSTILE, name=HOSTILE), fact(2, "turn_ended", HOSTILE, name=HOSTILE)]
    troubles = [incident(2, message=HOSTILE, name=HOSTILE)]
    server = Server(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, SERVER.zone)
    totals = replace(history([]).totals, endings={HOSTILE: 1})
    page = render_report(replace(history(idle(5), facts), totals=totals), troubles, server)
    read = StrictPage(page)
    assert read.tags.count("script") == 2
    assert "alert(1)" not in "".join(read.texts["script"])
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    shown = HOSTILE.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
    assert read.texts["h1"] == [shown]
    assert shown in read.texts["code"]
    assert any(shown in told for told in titles(pictures(page)["lanes"]))


def test_render_report_when_read_then_it_names_nothing_elsewhere() -> None:
    page = render_report(history(working(20), LIFE), [incident(3)], SERVER)
    assert "//" not in page.replace("</", "")
    assert {name for name, _ in StrictPage(page).attributes}.isdisjoint({"src", "href", "srcset", "action"})
    assert set(re.findall(r"url\(([^)]*)\)", page)) == {"#hatch"}
    assert "@import" not in page


def test_render_report_when_the_script_reads_its_numbers_then_they_are_those_of_the_samples() -> None:
    page = render_report(history([sample(1, full(7)), sample(2, full(9))]), [], SERVER)
    [told] = [text for text in StrictPage(page).texts["script"] if text.startswith("{")]
    numbers = json.loads(told)
    assert (numbers["start"], numbers["ends"]) == (START_S, [1, 2])
    rows = {name: values for name, _, _, values in numbers["charts"]["pool-full"]}
    assert rows["available"] == [93, 91]
    assert rows["uncached"] == [7, 9]
    assert rows["total"] == [100]
    assert set(rows) == {"available", "evictable", "protected", "session", "uncached", "total"}


def test_format_numbers_when_a_name_would_end_the_script_then_it_does_not() -> None:
    strip = Strip("</script><b>", "", "", (Series("</script>", "ink", (1.0,)),))
    told = StrictPage(format_numbers(timeline_of(history(idle(1))), (), [strip]))
    assert told.tags == ["script"]
    assert json.loads(told.texts["script"][0])["charts"] == {"</script><b>": [["</script>", "ink", "", [1]]]}


def test_render_report_when_books_balance_then_said_so() -> None:
    assert "The books balanced in all 5 samples" in render_report(history(idle(5)), [], SERVER)
    assert "The books balanced in the one sample" in render_report(history(idle(1)), [], SERVER)


def test_render_report_when_books_do_not_balance_then_said_where_first() -> None:
    wrong = replace(full(), available=99)
    page = render_report(history([sample(1), sample(2, wrong), sample(3, wrong)]), [], SERVER)
    assert "THE BOOKS DID NOT BALANCE in 2 samples, first at 08:00:02 in the pool full" in page


def test_render_report_when_units_are_quarantined_then_they_are_told_as_out_of_circulation() -> None:
    page = render_report(history([sample(1, full(total=97, quarantined=3))]), [], SERVER)
    assert "OUT OF CIRCULATION: 3" in page
    assert "quarantined" in words(pictures(page)["pool-full"])


def test_render_report_when_the_reader_is_elsewhere_then_times_are_his() -> None:
    server = replace(SERVER, zone=timezone(timedelta(hours=2)))
    assert "2027-01-15 10:00:00 to 10:00:05 (UTC+02:00), 5 s" in render_report(history(idle(5)), [], server)


def test_render_report_when_incidents_are_in_the_span_then_marked_with_their_ids_and_the_others_listed() -> None:
    troubles = [incident(-50, name="i-old"), incident(2, over_s=4, name="i-new"), incident(-3, over_s=1, name="i-on")]
    page = render_report(history(idle(10)), troubles, SERVER)
    tree = pictures(page)["pool-full"]
    assert [told for told in words(tree) if "i-" in told] == ["▾i-new"]
    assert len(find_all(tree, "trouble")) == 2
    assert len(find_all(tree, "incident")) == 1
    assert "2 incidents in this span, 1 before or after it" in page
    assert {"i-old", "i-new", "i-on"} < set(StrictPage(page).texts["code"])
    assert "(not in this span)" in page


def test_render_report_when_many_incidents_are_at_once_then_their_ids_do_not_overlap() -> None:
    troubles = [incident(5 + number / 100, name=f"i-{number}") for number in range(9)]
    tree = pictures(render_report(history(idle(10)), troubles, SERVER))["pool-full"]
    assert sum("▾" in told for told in words(tree)) == 2
    assert len(find_all(tree, "incident")) == 9


def test_render_report_when_facts_were_dropped_then_lanes_begin_where_they_are_whole() -> None:
    page = render_report(history(idle(100), [fact(60, "turn_accepted"), fact(80, "kv", "held")], dropped=7), [], SERVER)
    assert "7 older facts are not kept any more" in page
    assert "whole from 08:01:00 on" in page
    assert pictures(page)["lanes"].attrib["data-start"] == f"{START_S + 60:.3f}"


def test_render_report_when_there_are_many_sessions_then_the_rest_are_counted() -> None:
    facts = [fact(1, "opened", number=number) for number in range(LANES_MAX + 5)]
    page = render_report(history(idle(5), facts), [], SERVER)
    assert "5 more are not drawn" in page
    assert len(find_all(pictures(page)["lanes"], "lane")) == LANES_MAX


def test_render_report_when_nothing_happened_then_it_says_so_instead_of_drawing_nothing() -> None:
    page = render_report(history(idle(30)), [], SERVER)
    assert list(pictures(page)) == ["pool-full"]
    for told in ("The server was idle", "No unit changed its owner", "No session did anything", "No incident"):
        assert told in page
    empty = render_report(history([]), [], SERVER)
    assert pictures(empty) == {}
    assert "No sample was taken yet." in empty


def test_render_report_when_tokens_were_reused_then_their_share_is_told() -> None:
    totals = Totals(9, {"stop": 5, "client": 7}, {}, 60, 20, 20, 5, 4, 1, 2, 3, 8, {"session_closed": 2})
    page = render_report(replace(history(idle(2)), totals=totals), [], SERVER)
    assert "a session&#x27;s slot 60 (60.0 %)" in page
    assert "Turns ended by: client 7, stop 5" in page


@pytest.mark.parametrize("num_sessions", [20, 5000])
def test_render_report_when_an_hour_was_as_busy_as_can_be_then_the_page_is_under_2_mb(num_sessions: int) -> None:
    rng = random.Random(1)
    samples = [
        replace(
            state,
            pools=(_some_books(rng, 60_000, "full"), _some_books(rng, 500, "rows")),
            moves={name: rng.randrange(300) for name in ("grant", "donate", "park", "lend", "demote", "evict")},
            steps=rng.randrange(500),
            tokens_computed=rng.randrange(90_000),
            step_ms_p50=rng.random() * 90,
            step_ms_max=rng.random() * 900,
            first_token_ms_p50=rng.random() * 900,
            first_token_ms_max=rng.random() * 9000,
        )
        for state in working(3600)
    ]
    page = render_report(history(samples, _some_facts(rng, num_sessions), dropped=1), [], SERVER)
    StrictPage(page)
    assert len(page.encode()) < 2_000_000


def _some_books(rng: random.Random, total: int, kind: str) -> Pool:
    share = total // 5
    return full(*(rng.randrange(share) for _ in range(4)), total=total, draining=rng.randrange(share), kind=kind)


def _some_facts(rng: random.Random, num_sessions: int) -> list[SessionFact]:
    whats = ("turn_accepted", "lend", "kv", "turn_ended", "park", "kv")
    details = {"kv": ("lent", "held"), "turn_ended": ("stop", "client")}
    return [
        fact(
            3600 * number / 20_000,
            what := whats[number % len(whats)],
            rng.choice(details.get(what, ("",))),
            number=(session := rng.randrange(num_sessions)),
            name=f"customer-{session:032x}",
            units=rng.randrange(500),
            tokens=rng.randrange(9000),
            turn_id=f"{session:016x}{number // len(whats):016x}",
        )
        for number in range(20_000)
    ]


def test_render_report_when_the_server_has_all_pools_then_a_picture_and_a_caption_for_each_and_only_these() -> None:
    kinds = ("full", "swa", "mamba", "rows")
    heads = ("Who owned the pages", "Who owned the SWA pages", "Who owned the states", "Who owned the rows")
    for shown in (kinds, ("full", "rows")):
        pools = [full(1, 2, 3, 4, kind=kind) for kind in shown]
        page = render_report(history([sample(1, *pools), sample(2, *pools)]), (), SERVER)
        assert re.findall(r"<h2>(Who owned the [^<]+)</h2>", page) == [
            head for head, kind in zip(heads, kinds, strict=True) if kind in shown
        ]
        assert re.findall(r'data-chart="pool-(\w+)"', page) == list(shown)
        assert ("States of recurrent layers" in page) == ("mamba" in shown)
        assert ("layers with sliding windows" in page) == ("swa" in shown)


def test_draw_pool_when_of_states_then_the_cache_is_in_its_legend_and_no_tokens_at_its_axis() -> None:
    for kind, has_cache in (("mamba", True), ("rows", False)):
        page = render_report(history([sample(1, full(1, 2, kind=kind))]), (), SERVER)
        assert (re.search(r'class="name">evictable<', page) is not None) == has_cache
        assert " tok<" not in page
