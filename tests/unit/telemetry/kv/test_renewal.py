"""How often all is told again for readers that came too late."""

from telemetry.kv.renewal import RENEW_S, RENEW_TIMES, Renewal


def test_whole_when_somebody_is_late_for_the_first_time_then_asked_for_at_once_and_once() -> None:
    renewal = Renewal()
    assert (renewal.wait_s(5.0), renewal.take_due(5.0)) == (None, False)
    renewal.note_late()
    assert renewal.wait_s(5.0) == 0.0
    assert [renewal.take_due(5.0), renewal.take_due(5.0)] == [True, False]


def test_whole_when_it_was_told_lately_then_the_next_one_waits_however_many_ask() -> None:
    renewal = Renewal()
    renewal.note_told(took_s=0.1, now_s=100.0)
    for _ in range(3):
        renewal.note_late()
    assert renewal.wait_s(101.0) == RENEW_S - 1.0
    assert not renewal.take_due(101.0)
    assert renewal.take_due(100.0 + RENEW_S)


def test_whole_when_it_took_long_then_the_pause_is_many_times_as_long() -> None:
    renewal = Renewal()
    renewal.note_told(took_s=7.0, now_s=100.0)
    renewal.note_late()
    assert not renewal.take_due(100.0 + 7.0 * RENEW_TIMES - 0.1)
    assert renewal.take_due(100.0 + 7.0 * RENEW_TIMES)


def test_whole_when_asked_for_and_not_told_yet_then_it_serves_who_comes_meanwhile() -> None:
    renewal = Renewal()
    renewal.note_late()
    assert renewal.take_due(0.0)
    renewal.note_late()
    assert renewal.wait_s(1000.0) is None
    renewal.note_told(took_s=0.0, now_s=1000.0)
    assert renewal.wait_s(2000.0) is None
    renewal.note_late()
    assert renewal.take_due(2000.0)


def test_whole_when_one_is_told_for_another_reason_then_who_was_late_has_it() -> None:
    renewal = Renewal()
    renewal.note_told(took_s=0.0, now_s=0.0)
    renewal.note_late()
    renewal.note_told(took_s=0.0, now_s=1.0)
    assert renewal.wait_s(100.0) is None
