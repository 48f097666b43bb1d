"""One table: both sides of a connection agree."""

import pytest

from services.limits import LIMITS, client_options, server_options


def test_keepalive_when_our_client_pings_then_the_server_allows_it() -> None:
    """GRP-01 (sgl-project/sglang#19986): a client that pings more often than allowed is cut off."""
    allowed_ms = dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"]
    assert dict(client_options())["grpc.keepalive_time_ms"] >= allowed_ms


def test_messages_when_sized_then_both_sides_have_the_same_caps() -> None:
    """GRP-11 (grpc/grpc.io#1254)."""
    for option in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert dict(client_options())[option] == dict(server_options())[option] == LIMITS.message_bytes_max


def test_port_when_taken_then_no_second_server_shares_it() -> None:
    assert dict(server_options())["grpc.so_reuseport"] == 0


def test_calls_when_more_than_a_connection_may_have_then_the_client_queues_them_and_none_is_refused() -> None:
    options = dict(server_options())
    assert options["grpc.max_concurrent_streams"] == LIMITS.streams_max
    assert options["grpc.http.overload_protection"] == 0


@pytest.mark.parametrize(
    ("remaining_s", "margin_s"), [(0.0, 0.05), (5.0, 0.05), (9.5, 0.15), (10.099, 0.15), (89.0, 0.15), (100.999, 1.05)]
)
def test_deadline_margin_when_a_timeout_was_rounded_up_on_the_wire_then_so_much_more(
    remaining_s: float, margin_s: float
) -> None:
    assert LIMITS.deadline_margin(remaining_s) == pytest.approx(margin_s)


# Timeout of a client, and what its server is told of it: as measured with gRPC 1.85.
ON_THE_WIRE = [(5.671, 5.68), (9.991, 10.0), (10.01, 10.1), (99.91, 100.0), (100.2, 101.0), (999.5, 1000.0)]
ON_THE_WIRE += [(1001.0, 1010.0), (5003.0, 5010.0), (12_345.0, 12_400.0), (99_901.0, 100_000.0), (650_001.0, 654_000.0)]


@pytest.mark.parametrize(("timeout_s", "told_s"), ON_THE_WIRE)
@pytest.mark.parametrize("on_the_way", [0.0, 0.01, 0.1])
def test_deadline_margin_when_the_client_holds_the_exact_deadline_then_the_turn_ends_before_it(
    timeout_s: float, told_s: float, on_the_way: float
) -> None:
    """`on_the_way`: the share of the time that had passed when the server first looked."""
    passed_s = on_the_way * timeout_s
    ends_s = told_s - LIMITS.deadline_margin(told_s - passed_s)
    assert timeout_s - 0.03 * timeout_s - 0.1 < ends_s <= timeout_s - 0.04
