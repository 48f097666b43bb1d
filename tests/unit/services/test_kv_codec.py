"""Books and events on the wire and back: nothing is lost, and no message is too large."""

import pytest

from engine.core.events import Draining, KvMoved, Protected, Unprotected
from engine.core.ids import StepNo
from engine.core.image import BooksImage, PoolImage
from engine.core.ownership import CACHE, FREE, MOVES, QUARANTINED, Move, Owner, OwnerKind, PoolKind
from protos.v1 import ownership_pb2
from services.client import KvEventInfo, KvEventSource, KvWhat, UnitOwner
from services.client.kv_events import decode_event, decode_image, decode_source
from services.kv_codec import RUNS_MAX, encode_events, encode_image, encode_sources, find_runs
from services.limits import LIMITS
from telemetry.kv.event_log import KvRecord
from telemetry.kv.feed import KvSource

FULL, ROWS = PoolKind.FULL, PoolKind.ROWS
TURN, SESSION = Owner(OwnerKind.REQUEST, 2**40), Owner(OwnerKind.SESSION, 3)
OWNERS = (FREE, FREE, TURN, TURN, CACHE, CACHE, QUARANTINED, SESSION, FREE)
IMAGE = BooksImage(
    7,
    (
        PoolImage(FULL, OWNERS, frozenset({4, 5}), frozenset({2})),
        PoolImage(ROWS, (FREE, SESSION, TURN), frozenset(), frozenset({1, 2})),
    ),
)


def record(fact: KvMoved | Protected | Unprotected | Draining) -> KvRecord:
    return KvRecord(12, 1.5, StepNo(3), "chat", "t1", fact)


def decode(fact: KvMoved | Protected | Unprotected | Draining) -> KvEventInfo:
    (event,) = encode_events([record(fact)]).events
    return decode_event(event)


def shown(owner: Owner) -> UnitOwner:
    return UnitOwner(str(owner.kind), owner.name)


def test_image_when_sent_then_neighbours_of_one_owner_are_one_run_and_padding_is_left_out() -> None:
    (snapshot,) = encode_image(IMAGE, "log-1", 9, 1.5)
    assert (snapshot.log_id, snapshot.sequence, snapshot.time_s) == ("log-1", 9, 1.5)
    full, rows = snapshot.pools
    assert (full.pool, full.size, rows.pool, rows.size) == (
        ownership_pb2.POOL_KIND_FULL,
        9,
        ownership_pb2.POOL_KIND_ROWS,
        3,
    )
    assert [(run.run.first, run.run.count) for run in full.owned] == [(1, 1), (2, 2), (4, 2), (6, 1), (7, 1), (8, 1)]
    assert [(run.first, run.count) for run in full.protected] == [(4, 2)]
    assert [(run.first, run.count) for run in rows.draining] == [(1, 2)]


@pytest.mark.parametrize("runs_max", [1, 2, 3, 5, RUNS_MAX])
def test_image_when_cut_into_messages_then_the_client_puts_it_together(runs_max: int) -> None:
    parts = list(encode_image(IMAGE, "log-1", 9, 1.5, runs_max))
    num_runs = 6 + 1 + 1 + 2 + 1
    assert len(parts) == -(-num_runs // runs_max)
    assert {(part.log_id, part.sequence, len(part.pools)) for part in parts} == {("log-1", 9, 2)}
    image = decode_image(parts)
    assert (image.log_id, image.sequence, image.time_s) == ("log-1", 9, 1.5)
    for pool, sent in zip(image.pools, IMAGE.pools, strict=True):
        assert pool.kind == sent.pool
        assert pool.owners == tuple(map(shown, sent.owners))
        assert (pool.protected, pool.draining) == (sent.protected, sent.draining)


def test_image_when_it_has_many_runs_then_others_may_run_in_between() -> None:
    owners = tuple(Owner(OwnerKind.REQUEST, unit) for unit in range(2000))
    rests: list[None] = []
    parts = encode_image(
        BooksImage(1, (PoolImage(FULL, owners, frozenset(), frozenset()),)),
        "log-1",
        9,
        1.5,
        rest=lambda: rests.append(None),
    )
    assert len(list(parts)) == 1
    assert 4 <= len(rests) <= 200


def test_image_when_it_is_as_scattered_as_can_be_then_no_message_is_too_large() -> None:
    size = RUNS_MAX + 100
    owners = tuple(Owner(OwnerKind.REQUEST, 2**62 + unit) if unit % 2 else SESSION for unit in range(size))
    image = BooksImage(1, (PoolImage(FULL, owners, frozenset(), frozenset()),))
    parts = list(encode_image(image, "x" * 64, 2**62, 1.5))
    assert len(parts) == 2
    assert max(part.ByteSize() for part in parts) < LIMITS.message_bytes_max
    assert decode_image(parts).pools[0].owners[1:] == tuple(map(shown, owners[1:]))


def test_runs_when_neighbours_are_put_together_then_each_unit_is_in_one() -> None:
    assert list(find_runs(())) == []
    assert list(find_runs((1, 2, 3, 5, 7, 8))) == [(1, 3), (5, 1), (7, 2)]


@pytest.mark.parametrize("move", Move)
def test_move_when_sent_then_its_name_its_owners_and_whom_it_is_about(move: Move) -> None:
    event = decode(KvMoved(PoolKind.SWA, move, TURN, SESSION, (3, 1), StepNo(3), "ab" * 16))
    assert event == KvEventInfo(
        sequence=12,
        time_s=1.5,
        step=3,
        pool="swa",
        units=(3, 1),
        what=KvWhat.MOVED,
        move=MOVES[move].event,
        source=shown(TURN),
        target=shown(SESSION),
        session_id="chat",
        turn_id="t1",
        trace_id="ab" * 16,
    )


def test_other_events_when_sent_then_what_they_are_and_their_units() -> None:
    protected, unprotected = decode(Protected((4,), PoolKind.MAMBA)), decode(Unprotected((5, 6)))
    assert (protected.what, protected.pool, protected.units) == (KvWhat.PROTECTED, "mamba", (4,))
    assert (unprotected.what, unprotected.pool, unprotected.units) == (KvWhat.UNPROTECTED, "full", (5, 6))
    draining = decode(Draining(SESSION, (1, 2), StepNo(8), ROWS))
    assert (draining.what, draining.pool, draining.units) == (KvWhat.DRAINING, "rows", (1, 2))
    assert (draining.source, draining.until_step) == (shown(SESSION), 8)


def test_event_when_of_a_kind_that_only_newer_servers_tell_then_unknown() -> None:
    assert decode_event(ownership_pb2.KvEvent(sequence=1)).what is KvWhat.UNKNOWN


def test_sources_when_sent_then_all_that_a_listener_needs() -> None:
    source = KvSource("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "kv@pod", "map", "v1", 16, "sha256", 10_000)
    (sent,) = encode_sources([source]).sources
    assert decode_source(sent) == KvEventSource(
        "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "kv@pod", "map", "v1", 16, "sha256", 10_000
    )
    assert list(encode_sources(()).sources) == []
