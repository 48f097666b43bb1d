"""Asks a health port as an orchestrator does: without an event loop, over a connection of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2

TIMEOUT_S = 10.0


class ProbeRefused(Exception):
    """The call ended with a status."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(str(error))
        # What is raised is a call as well, which the published types do not say.
        assert isinstance(error, grpc.Future)
        self.code: grpc.StatusCode = error.code()
        self.details: str = error.details() or ""


HealthCheck: TypeAlias = "grpc.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]"


def health_check(channel: grpc.Channel) -> HealthCheck:
    """The Check of a port. By name: the published types of the generated stub know no methods."""
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )


class HealthProbe:
    def __init__(self, channel: grpc.Channel) -> None:
        self._check = health_check(channel)
        self._watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    def is_serving(self, service: str, timeout_s: float = TIMEOUT_S) -> bool:
        """Raises ProbeRefused."""
        try:
            answer = self._check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            raise ProbeRefused(error) from None
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def watch(self, service: str, timeout_s: float = TIMEOUT_S) -> Iterator[bool]:
        """Whether it is serving, each time that this changes. Raises ProbeRefused."""
        try:
            for answer in self._watch(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s):
                yield bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        except grpc.RpcError as error:
            raise ProbeRefused(error) from None


@contextmanager
def health_probe(address: str) -> Iterator[HealthProbe]:
    with grpc.insecure_channel(address) as channel:
        yield HealthProbe(channel)
