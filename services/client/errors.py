"""The client's one exception: what the server said, typed."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

_DETAILS_KEY = "grpc-status-details-bin"

_Response = TypeVar("_Response")


class TenureError(Exception):
    """A call that did not succeed.

    `reason` is the machine-readable cause, as in `SESSION_BUSY`; `code` the gRPC status; `field` the offending field of
    the request, `metadata` its value and limit, `retry_after_s` when to try again, where the server told.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        code: grpc.StatusCode,
        field: str | None = None,
        metadata: dict[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.code = code
        self.field = field
        self.metadata = metadata or {}
        self.retry_after_s = retry_after_s


def to_error(error: aio.AioRpcError) -> TenureError:
    """What the server said, or, when it said nothing, the status that the transport made up."""
    status = _read_status(error)
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    has_retry = False
    for detail in status.details:
        # Each takes only what is of its own type.
        detail.Unpack(info)
        detail.Unpack(bad_request)
        has_retry = detail.Unpack(retry) or has_retry
    violations = bad_request.field_violations
    return TenureError(
        info.reason or error.code().name,
        status.message or error.details() or "the server did not say why",
        code=error.code(),
        field=violations[0].field if violations else None,
        metadata=dict(info.metadata),
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if has_retry else None,
    )


async def answer(call: Awaitable[_Response]) -> _Response:
    """Awaits a call. Raises TenureError."""
    try:
        return await call
    except aio.AioRpcError as error:
        raise to_error(error) from None


def _read_status(error: aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()
