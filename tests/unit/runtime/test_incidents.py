"""Incidents are few, bounded, and found by their ids."""

from engine.runtime.incidents import DUMPS_MAX, INCIDENTS_MAX, IncidentKind, Incidents


class HandClock:
    at_s = 10.0

    def now(self) -> float:
        return self.at_s


def test_incidents_when_too_many_then_the_newest_are_kept_under_ids_of_their_own() -> None:
    incidents = Incidents(HandClock())
    opened = [incidents.open(IncidentKind.FORWARD_FAILED, f"step {number}") for number in range(INCIDENTS_MAX + 3)]
    assert [each.message for each in incidents.all()] == [each.message for each in opened[3:]]
    assert len({each.incident_id for each in opened}) == len(opened)
    assert incidents.find(opened[0].incident_id) is None
    assert incidents.find(opened[-1].incident_id) == opened[-1]


def test_dumps_when_too_many_then_the_oldest_lose_theirs_and_stay() -> None:
    incidents = Incidents(HandClock())
    opened = [incidents.open(IncidentKind.FORWARD_STUCK, "") for _ in range(DUMPS_MAX + 2)]
    for number, incident in enumerate(opened):
        incidents.attach(incident.incident_id, f"dump {number}")
    assert [each.dump for each in incidents.all()] == [None, None, *(f"dump {it}" for it in range(2, DUMPS_MAX + 2))]


def test_end_when_an_incident_is_over_then_says_when_and_one_that_is_not_kept_is_no_error() -> None:
    clock = HandClock()
    incidents = Incidents(clock)
    incident = incidents.open(IncidentKind.LOOP_STUCK, "")
    clock.at_s = 12.5
    incidents.end(incident.incident_id)
    incidents.end("gone")
    incidents.attach("gone", "dump")
    assert [(each.time_s, each.over_s) for each in incidents.all()] == [(10.0, 12.5)]


def test_incidents_when_many_are_over_then_those_that_are_not_or_have_a_dump_stay() -> None:
    incidents = Incidents(HandClock())
    stuck = incidents.open(IncidentKind.FORWARD_STUCK, "")
    incidents.attach(stuck.incident_id, "dump")
    incidents.end(stuck.incident_id)
    leak = incidents.open(IncidentKind.LEAK, "")
    for _ in range(3 * INCIDENTS_MAX):
        incidents.end(incidents.open(IncidentKind.FORWARD_FAILED, "").incident_id)
    kept = [each.incident_id for each in incidents.all()]
    assert kept[:2] == [stuck.incident_id, leak.incident_id]
    assert len(kept) == INCIDENTS_MAX


def test_dumps_when_one_incident_has_two_then_both_are_kept() -> None:
    incidents = Incidents(HandClock())
    incident = incidents.open(IncidentKind.FORWARD_STUCK, "")
    incidents.attach(incident.incident_id, "first")
    incidents.attach(incident.incident_id, "second")
    assert [each.dump for each in incidents.all()] == ["first\n\nsecond"]
