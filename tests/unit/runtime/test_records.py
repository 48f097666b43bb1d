"""Records of finished turns: bounded in number, in time and in bytes, and gone with their session."""

from dataclasses import replace

import pytest

from engine.core.commands import FinishReason
from engine.core.events import Usage
from engine.core.ids import SessionId, TurnId, pack_ids
from engine.runtime.config import RuntimeConfig
from engine.runtime.handle import Finished, Started, StreamReason, StreamRefusal
from engine.runtime.records import ATTEMPTS_MAX, FORGOTTEN_MAX, RECORD_BYTES, TurnRecord, TurnRecords

CONFIG = RuntimeConfig(session_records_max=2, stateless_record_s=60.0)
SESSION = SessionId("s")
RECORD = TurnRecord(
    content=b"c",
    started=Started(3, 3, 8),
    finished=Finished(FinishReason.STOP, Usage(3, 0, 0, 3, 2, 0), history_len=5, is_committed=True),
    output_ids=pack_ids(range(100)),
    stop_strings=("end",),
)


def turn(number: int) -> TurnId:
    return TurnId(f"t{number}")


def reason_of(records: TurnRecords, turn_id: TurnId) -> StreamReason:
    with pytest.raises(StreamRefusal) as caught:
        records.find(SESSION, turn_id)
    return caught.value.reason


def test_find_when_recorded_then_found_under_its_own_name_only() -> None:
    records = TurnRecords(CONFIG)
    records.add(SESSION, turn(1), RECORD, 0.0)
    assert records.find(SESSION, turn(1)) is RECORD
    assert records.find(None, turn(1)) is None
    assert records.find(SessionId("other"), turn(1)) is None
    assert records.num_bytes == RECORD.num_bytes >= RECORD_BYTES + 400


def test_add_when_a_session_has_more_than_are_kept_then_the_oldest_is_forgotten_by_name() -> None:
    records = TurnRecords(CONFIG)
    for number in range(3):
        records.add(SESSION, turn(number), RECORD, float(number))
    assert reason_of(records, turn(0)) is StreamReason.TURN_FORGOTTEN
    assert records.find(SESSION, turn(1)) is records.find(SESSION, turn(2)) is RECORD
    assert (len(records), records.num_bytes) == (2, 2 * RECORD.num_bytes)


def test_add_when_very_many_then_even_names_are_bounded() -> None:
    records = TurnRecords(CONFIG)
    for number in range(FORGOTTEN_MAX + 3):
        records.add(SESSION, turn(number), RECORD, 0.0)
    assert records.find(SESSION, turn(0)) is None
    assert reason_of(records, turn(1)) is StreamReason.TURN_FORGOTTEN


def test_add_when_bytes_run_out_then_the_oldest_of_all_go_first() -> None:
    records = TurnRecords(replace(CONFIG, record_bytes_max=3 * RECORD.num_bytes))
    records.add(None, turn(0), RECORD, 0.0)
    records.add(SESSION, turn(1), RECORD, 1.0)
    records.add(None, turn(2), RECORD, 2.0)
    records.add(None, turn(3), RECORD, 3.0)
    assert records.find(None, turn(0)) is None
    records.add(None, turn(4), RECORD, 4.0)
    assert reason_of(records, turn(1)) is StreamReason.TURN_FORGOTTEN
    assert records.num_bytes == 3 * RECORD.num_bytes


def test_add_when_one_record_is_larger_than_all_may_be_then_not_kept() -> None:
    records = TurnRecords(replace(CONFIG, record_bytes_max=RECORD.num_bytes - 1))
    records.add(None, turn(0), RECORD, 0.0)
    assert (len(records), records.num_bytes) == (0, 0)


def test_expire_when_the_time_is_up_then_stateless_ones_go_and_those_of_sessions_stay() -> None:
    records = TurnRecords(CONFIG)
    records.add(SESSION, turn(0), RECORD, 0.0)
    records.add(None, turn(1), RECORD, 10.0)
    records.add(None, turn(2), RECORD, 11.0)
    records.expire(69.9)
    assert records.find(None, turn(1)) is RECORD
    records.expire(70.0)
    assert records.find(None, turn(1)) is None
    assert records.find(None, turn(2)) is records.find(SESSION, turn(0)) is RECORD


def test_drop_session_when_closed_then_nothing_of_it_is_left() -> None:
    records = TurnRecords(CONFIG)
    records.add(None, turn(9), RECORD, 0.0)
    for number in range(3):
        records.add(SESSION, turn(number), RECORD, 0.0)
    records.free(SESSION, turn(5), 1)
    records.drop_session(SESSION)
    assert [records.find(SESSION, turn(number)) for number in range(3)] == [None] * 3
    assert records.next_attempt(SESSION, turn(5)) == 1
    assert records.num_bytes == RECORD.num_bytes
    records.drop_session(SESSION)


def test_drop_turns_when_forgotten_by_the_session_then_gone_and_their_names_begin_another_attempt() -> None:
    records = TurnRecords(CONFIG)
    records.add(None, turn(1), RECORD, 0.0)
    for number in range(3):
        records.add(SESSION, turn(number), RECORD, 0.0)
    records.drop_turns(SESSION, (turn(0), turn(1), turn(7)))
    assert [records.find(SESSION, turn(number)) for number in (0, 1)] == [None, None], "also one that was forgotten"
    assert [records.next_attempt(SESSION, turn(number)) for number in (0, 1, 7)] == [2, 2, 1]
    assert records.find(SESSION, turn(2)) is records.find(None, turn(1)) is RECORD
    assert (len(records), records.num_bytes) == (2, 2 * RECORD.num_bytes)
    records.drop_turns(SessionId("unknown"), (turn(1),))


def test_next_attempt_when_rolled_back_then_one_more_until_committed() -> None:
    records = TurnRecords(CONFIG)
    assert records.next_attempt(SESSION, turn(1)) == 1
    records.free(SESSION, turn(1), 1)
    assert records.next_attempt(SESSION, turn(1)) == 2
    assert records.next_attempt(None, turn(1)) == 1
    records.add(SESSION, turn(1), RECORD, 0.0)
    assert records.next_attempt(SESSION, turn(1)) == 1


def test_free_when_very_many_then_the_oldest_are_forgotten() -> None:
    records = TurnRecords(CONFIG)
    for number in range(ATTEMPTS_MAX + 1):
        records.free(SESSION, turn(number), 1)
    assert [records.next_attempt(SESSION, turn(number)) for number in (0, 1)] == [1, 2]
