"""What the core raises: refusals that become a reply, and violations that must stop the server."""

from enum import StrEnum


class CoreError(Exception):
    """Anything the core raises on purpose."""


class InvariantViolation(CoreError):
    """The books can not be trusted any more. Never caught to go on serving."""


def require(holds: bool, message: str) -> None:
    """A conservation law. Unlike `assert` it survives `python -O`. Raises InvariantViolation."""
    if not holds:
        raise InvariantViolation(message)


class RefusalReason(StrEnum):
    """Machine-readable reasons; the services map each to a status code and publish it as `ErrorInfo.reason`."""

    EMPTY_PROMPT = "EMPTY_PROMPT"
    TOKEN_OUT_OF_RANGE = "TOKEN_OUT_OF_RANGE"
    MAX_TOKENS_INVALID = "MAX_TOKENS_INVALID"
    SAMPLING_INVALID = "SAMPLING_INVALID"
    IDLE_TIMEOUT_INVALID = "IDLE_TIMEOUT_INVALID"
    PRIORITY_INVALID = "PRIORITY_INVALID"
    DRAFT_TOKENS_INVALID = "DRAFT_TOKENS_INVALID"
    OFFSET_INVALID = "OFFSET_INVALID"
    LENGTH_INVALID = "LENGTH_INVALID"
    PROMPT_EXCEEDS_CONTEXT = "PROMPT_EXCEEDS_CONTEXT"
    PROMPT_EXCEEDS_POOL = "PROMPT_EXCEEDS_POOL"
    SESSION_UNKNOWN = "SESSION_UNKNOWN"
    SESSION_CLOSING = "SESSION_CLOSING"
    SESSION_EXISTS = "SESSION_EXISTS"
    SESSION_BUSY = "SESSION_BUSY"
    SESSION_LIMIT = "SESSION_LIMIT"
    SESSION_TURNS_LIMIT = "SESSION_TURNS_LIMIT"
    SESSION_REQUIRED = "SESSION_REQUIRED"
    HISTORY_LIMIT = "HISTORY_LIMIT"
    STREAMING_APPENDS_ONLY = "STREAMING_APPENDS_ONLY"
    STREAMING_DISABLED = "STREAMING_DISABLED"
    PARENT_UNKNOWN = "PARENT_UNKNOWN"
    PARENT_UNFINISHED = "PARENT_UNFINISHED"
    PARENT_REQUIRED = "PARENT_REQUIRED"
    TURN_EXISTS = "TURN_EXISTS"
    QUEUE_FULL = "QUEUE_FULL"
    FAULT_IMPOSSIBLE = "FAULT_IMPOSSIBLE"


class Refusal(CoreError):
    """A command that was not accepted. It changed nothing.

    `field` names the offending input, `value` what was given, `limit` what would have been allowed, where they exist.
    """

    def __init__(
        self,
        reason: RefusalReason,
        message: str,
        *,
        field: str | None = None,
        value: int | str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.value = value
        self.limit = limit
