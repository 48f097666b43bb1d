"""The error table: what a client is told for each refusal, abort and failure. Pure data and pure functions."""

from dataclasses import dataclass, field
from enum import StrEnum

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from engine.core.commands import AbortReason
from engine.core.errors import Refusal, RefusalReason
from engine.runtime.handle import StreamReason, StreamRefusal
from services.limits import LIMITS

DOMAIN = "tenure"
"""`ErrorInfo.domain` of every error."""
DETAILS_KEY = "grpc-status-details-bin"
"""Where gRPC carries a `google.rpc.Status`."""

INCIDENT_KEY = "incident_id"
"""In `ErrorInfo.metadata`: under which number the log has what went wrong on the server."""


class EdgeReason(StrEnum):
    """Reasons that arise at the edge, beside the engine's `RefusalReason` and `AbortReason`."""

    FIELD_INVALID = "FIELD_INVALID"
    INPUT_MISSING = "INPUT_MISSING"
    CHAT_UNSUPPORTED = "CHAT_UNSUPPORTED"
    CHAT_INVALID = "CHAT_INVALID"
    SERVER_LOADING = "SERVER_LOADING"
    SERVER_STOPPING = "SERVER_STOPPING"
    ENGINE_FAILED = "ENGINE_FAILED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    INCIDENT_UNKNOWN = "INCIDENT_UNKNOWN"
    TRACE_UNKNOWN = "TRACE_UNKNOWN"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it will be told."""

    code: grpc.StatusCode
    reason: str
    """`ErrorInfo.reason`: for programs."""
    message: str
    """For people."""
    field_name: str | None = None
    """The offending field of the request, as in `sampling.max_tokens`."""
    retry_after_s: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    """`ErrorInfo.metadata`: value and limit, where they exist."""


class CallError(Exception):
    """Ends a call with a Problem. Raised by servicers, turned into a status by the interceptor."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    code: grpc.StatusCode
    retry_after_s: float | None = None


_Code = grpc.StatusCode

REFUSALS: dict[RefusalReason, Row] = {
    RefusalReason.EMPTY_PROMPT: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.TOKEN_OUT_OF_RANGE: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.MAX_TOKENS_INVALID: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.SAMPLING_INVALID: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.IDLE_TIMEOUT_INVALID: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.PRIORITY_INVALID: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.DRAFT_TOKENS_INVALID: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.SESSION_REQUIRED: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.PARENT_REQUIRED: Row(_Code.INVALID_ARGUMENT),
    RefusalReason.OFFSET_INVALID: Row(_Code.OUT_OF_RANGE),
    RefusalReason.LENGTH_INVALID: Row(_Code.OUT_OF_RANGE),
    RefusalReason.PROMPT_EXCEEDS_CONTEXT: Row(_Code.OUT_OF_RANGE),
    RefusalReason.PROMPT_EXCEEDS_POOL: Row(_Code.OUT_OF_RANGE),
    RefusalReason.SESSION_UNKNOWN: Row(_Code.NOT_FOUND),
    RefusalReason.PARENT_UNKNOWN: Row(_Code.NOT_FOUND),
    RefusalReason.SESSION_EXISTS: Row(_Code.ALREADY_EXISTS),
    RefusalReason.TURN_EXISTS: Row(_Code.ALREADY_EXISTS),
    RefusalReason.SESSION_BUSY: Row(_Code.ABORTED),
    RefusalReason.STREAMING_APPENDS_ONLY: Row(_Code.FAILED_PRECONDITION),
    RefusalReason.STREAMING_DISABLED: Row(_Code.FAILED_PRECONDITION),
    RefusalReason.SESSION_CLOSING: Row(_Code.FAILED_PRECONDITION),
    RefusalReason.PARENT_UNFINISHED: Row(_Code.FAILED_PRECONDITION),
    RefusalReason.FAULT_IMPOSSIBLE: Row(_Code.FAILED_PRECONDITION),
    RefusalReason.SESSION_LIMIT: Row(_Code.RESOURCE_EXHAUSTED, retry_after_s=5.0),
    RefusalReason.SESSION_TURNS_LIMIT: Row(_Code.RESOURCE_EXHAUSTED, retry_after_s=1.0),
    RefusalReason.HISTORY_LIMIT: Row(_Code.RESOURCE_EXHAUSTED, retry_after_s=5.0),
    RefusalReason.QUEUE_FULL: Row(_Code.RESOURCE_EXHAUSTED, retry_after_s=1.0),
}
"""A turn or session that was not accepted."""


@dataclass(frozen=True, slots=True)
class AbortRow:
    code: grpc.StatusCode
    reason: str
    message: str
    retry_after_s: float | None = None


ABORTS: dict[AbortReason, AbortRow] = {
    AbortReason.CLIENT: AbortRow(_Code.ABORTED, "TURN_ABORTED", "the turn was aborted"),
    AbortReason.DISCONNECT: AbortRow(_Code.CANCELLED, "DISCONNECTED", "the client left the stream"),
    AbortReason.DEADLINE: AbortRow(_Code.DEADLINE_EXCEEDED, "DEADLINE", "the call's deadline has passed"),
    AbortReason.SESSION_CLOSED: AbortRow(_Code.ABORTED, "SESSION_CLOSED", "the session was closed"),
    AbortReason.SESSION_EXPIRED: AbortRow(_Code.ABORTED, "SESSION_EXPIRED", "the session has expired"),
    AbortReason.SLOW_READER: AbortRow(
        _Code.RESOURCE_EXHAUSTED, "SLOW_READER", "too many tokens were waiting to be read", retry_after_s=1.0
    ),
    AbortReason.FORWARD_FAILED: AbortRow(_Code.INTERNAL, "FORWARD_FAILED", "the model's computation failed"),
    AbortReason.COMMIT_FAILED: AbortRow(
        _Code.UNAVAILABLE, "COMMIT_FAILED", "the turn could not be stored", retry_after_s=1.0
    ),
    AbortReason.SHUTDOWN: AbortRow(_Code.UNAVAILABLE, "SHUTDOWN", "the server is shutting down", retry_after_s=2.0),
    AbortReason.REPLACED: AbortRow(_Code.ABORTED, "TURN_REPLACED", "a later turn of the session took the place of it"),
}
"""A turn that was accepted and then broken off."""

STREAMS: dict[StreamReason, Row] = {
    StreamReason.TURN_UNKNOWN: Row(_Code.NOT_FOUND),
    StreamReason.TURN_FORGOTTEN: Row(_Code.FAILED_PRECONDITION),
    StreamReason.ATTEMPT_CHANGED: Row(_Code.ABORTED),
    StreamReason.FROM_TOKEN_INVALID: Row(_Code.OUT_OF_RANGE),
    StreamReason.HISTORY_MOVED: Row(_Code.ABORTED),
    StreamReason.SLOW_READER: Row(_Code.RESOURCE_EXHAUSTED, retry_after_s=1.0),
}
"""A stream that can not be had, or not any longer; the turn itself may be well."""

REQUEST_FIELDS: dict[str, str] = {
    "token_ids": "tokens.token_ids",
    "max_tokens": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "seed": "sampling.seed",
    "fault": "kind",
}
"""The core's name of a field → the request's, where they differ."""


def from_refusal(refusal: Refusal) -> Problem:
    return _from_row(REFUSALS[refusal.reason], refusal)


def from_stream_refusal(refusal: StreamRefusal) -> Problem:
    return _from_row(STREAMS[refusal.reason], refusal)


def _from_row(row: Row, refusal: Refusal | StreamRefusal) -> Problem:
    facts = {"value": refusal.value, "limit": refusal.limit}
    return Problem(
        code=row.code,
        reason=refusal.reason.value,
        message=refusal.message,
        field_name=None if refusal.field is None else REQUEST_FIELDS.get(refusal.field, refusal.field),
        retry_after_s=row.retry_after_s,
        metadata={name: str(fact) for name, fact in facts.items() if fact is not None},
    )


def from_abort(reason: AbortReason, detail: str, incident_id: str = "") -> Problem:
    """`incident_id`: of what broke the turn off, where that is known under one."""
    row = ABORTS[reason]
    message = f"{row.message}: {detail}" if detail else row.message
    metadata = {INCIDENT_KEY: incident_id} if incident_id else {}
    if incident_id:
        message = f"{message}; please report incident {incident_id}"
    return Problem(row.code, row.reason, message, retry_after_s=row.retry_after_s, metadata=metadata)


def invalid_field(
    field_name: str,
    message: str,
    *,
    reason: EdgeReason = EdgeReason.FIELD_INVALID,
    value: object = None,
    limit: object = None,
) -> CallError:
    """INVALID_ARGUMENT that names the field, and the value and limit where they help."""
    facts = {"value": value, "limit": limit}
    metadata = {name: str(fact) for name, fact in facts.items() if fact is not None}
    return CallError(
        Problem(grpc.StatusCode.INVALID_ARGUMENT, reason.value, f"{field_name}: {message}", field_name, None, metadata)
    )


def unavailable(reason: EdgeReason, message: str) -> CallError:
    """UNAVAILABLE: the same call may succeed soon, here or on another replica."""
    return CallError(Problem(grpc.StatusCode.UNAVAILABLE, reason.value, message, retry_after_s=1.0))


def to_status(problem: Problem) -> status_pb2.Status:
    """The `google.rpc.Status` that carries all of a Problem. Texts are cut to the limit."""
    status = status_pb2.Status(code=_number(problem.code), message=_cut(problem.message))
    info = error_details_pb2.ErrorInfo(
        reason=problem.reason,
        domain=DOMAIN,
        metadata={name: _cut(value) for name, value in problem.metadata.items()},
    )
    status.details.add().Pack(info)
    if problem.field_name is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(problem.field_name), description=_cut(problem.message), reason=problem.reason
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if problem.retry_after_s is not None:
        delay = Duration(nanos=round(problem.retry_after_s % 1 * 1e9), seconds=int(problem.retry_after_s))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _number(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number


def _cut(text: str) -> str:
    # Header values are ASCII on the wire, percent-encoded: what is cut by characters stays under the limit by far.
    return text if len(text) <= LIMITS.error_chars_max else text[: LIMITS.error_chars_max - 1] + "…"
