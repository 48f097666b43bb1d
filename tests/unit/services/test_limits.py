"""One table: both sides of a connection agree."""

from services.limits import LIMITS, client_options, server_options


def test_keepalive_when_our_client_pings_then_the_server_allows_it() -> None:
    """GRP-01 (sgl-project/sglang#19986): a client that pings more often than allowed is cut off."""
    allowed_ms = dict(server_options())["grpc.http2.min_recv_ping_interval_without_data_ms"]
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
