"""The span of the call that the current task serves."""

from contextvars import ContextVar

from telemetry.spans.call_span import CallSpan

_UNTRACED = CallSpan(None, "/", None)
_current: ContextVar[CallSpan] = ContextVar("tenure_call", default=_UNTRACED)


def current_call() -> CallSpan:
    """Of the call that this task serves; one that is drawn nowhere outside of calls."""
    return _current.get()


def enter_call(span: CallSpan) -> None:
    """This task serves that call from now on. A task of gRPC serves one call only, so nobody has to leave."""
    _current.set(span)
