"""The one table of limits at the edge: it feeds server and client options, validation and docs."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

_EXACT_S = 9.0
"""Timeouts below this lose no more than a hundredth of a second on the wire."""
_ROUNDED_S = ((90.0, 0.1), (900.0, 1.0))
"""Seconds that are left, and by how much they may have been rounded up below."""

ChannelOptions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Sizes and intervals that clients meet before anything reaches the engine."""

    message_bytes_max: int = 4 * MIB
    """Of a request and of a reply: a million packed token ids fit."""
    metadata_bytes_max: int = 16 * KIB
    """All headers of a call together."""
    streams_max: int = 256
    """Calls at once on one connection."""
    ping_interval_s: int = 20
    """How often our client, and our server, ask whether the other side is still there."""
    ping_timeout_s: int = 10
    reconnect_ms: int = 100
    """How long our client waits before it connects again; longer each time."""
    reconnect_max_ms: int = 1000
    ping_allowed_s: int = 10
    """Clients that ping more often than this are cut off."""
    name_chars_max: int = 128
    """Of session and turn ids."""
    text_bytes_max: int = 1 * MIB
    """Of the text, or of all chat messages, of a turn."""
    messages_max: int = 1024
    """Chat messages of a turn."""
    stops_max: int = 16
    """Stop strings of a turn."""
    stop_chars_max: int = 256
    """Of one stop string."""
    list_page_default: int = 100
    list_page_max: int = 1000
    """Sessions of one page of a list."""
    error_chars_max: int = 512
    """Texts in an error are cut here, well under the limit of metadata."""
    deadline_margin_s: float = 0.05
    """How long before a call's deadline its turn is aborted, so that the last message still gets there."""

    def deadline_margin(self, remaining_s: float) -> float:
        """Seconds before the end of a call that began with so many left: the margin, and what the wire has rounded up.

        A client's timeout travels in three digits or so: up to 0.1 s longer from 10 s on, up to 1 s longer from 100 s
        on, and one hundredth at most. The client itself holds the exact one. The steps begin a tenth early, since some
        of the time has passed when it is read here.
        """
        if remaining_s < _EXACT_S:
            return self.deadline_margin_s
        rounded_s = next((step_s for below_s, step_s in _ROUNDED_S if remaining_s < below_s), remaining_s / 90)
        return self.deadline_margin_s + rounded_s


LIMITS = EdgeLimits()


def server_options(limits: EdgeLimits = LIMITS) -> ChannelOptions:
    """gRPC options of the server."""
    return (
        *_shared_options(limits),
        ("grpc.max_concurrent_streams", limits.streams_max),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.ping_allowed_s * 1000),
        # Otherwise the transport refuses, at random, calls that a client began while it still had room for them: a
        # client that is told of `streams_max` queues the rest by itself, but has begun some by the time it is told.
        ("grpc.http.overload_protection", 0),
        # Without this two servers could share a port, and each would get a part of the calls.
        ("grpc.so_reuseport", 0),
    )


def client_options(limits: EdgeLimits = LIMITS) -> ChannelOptions:
    """gRPC options of our client: never more pings than the server allows."""
    return (
        *_shared_options(limits),
        # However long nothing is told on a stream: otherwise it is once a minute after the second one.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", limits.reconnect_ms),
        ("grpc.min_reconnect_backoff_ms", limits.reconnect_max_ms),
        ("grpc.max_reconnect_backoff_ms", limits.reconnect_max_ms),
    )


def _shared_options(limits: EdgeLimits) -> ChannelOptions:
    return (
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", limits.message_bytes_max),
        ("grpc.max_metadata_size", limits.metadata_bytes_max),
        ("grpc.keepalive_time_ms", limits.ping_interval_s * 1000),
        ("grpc.keepalive_timeout_ms", limits.ping_timeout_s * 1000),
    )
