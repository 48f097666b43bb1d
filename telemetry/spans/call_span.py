"""The SERVER span of one call: begun when it comes in, ended once, with the status that its client got."""

from engine.runtime.handle import NOBODY, Caller
from telemetry.names import Attr, Relation, call_span_name
from telemetry.spans.context import write_caller
from telemetry.spans.record import FinishedSpan, Link, SpanContext, SpanKind, SpanStatus, Value
from telemetry.spans.tracer import Tracer

_OK = "OK"
_CLIENTS_FAULT = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
}
"""Codes that are no error of the server: the conventions leave a server's span unset with them."""


class CallSpan:
    """Belongs to the task that serves the call. One without a tracer is drawn nowhere."""

    def __init__(self, tracer: Tracer | None, method: str, parent: SpanContext | None) -> None:
        """`method`: `/package.Service/Method`. `parent`: the caller's span, where the call names one."""
        self._tracer = tracer
        service, _, name = method.lstrip("/").partition("/")
        self._name = name
        self._attributes: dict[str, Value] = {
            Attr.RPC_SYSTEM: "grpc",
            Attr.RPC_SERVICE: service,
            Attr.RPC_METHOD: name,
        }
        self._links: list[Link] = []
        self._parent = parent
        self.context: SpanContext | None = None
        self.caller: Caller = NOBODY
        """Who everything is done for that this call asks."""
        if tracer is not None:
            is_remote = parent is not None
            self.context = tracer.begin_remote(parent, name) if is_remote and parent else tracer.begin(None, name)
            self.caller = write_caller(self.context)
            self._start_ns = tracer.timeline.now_ns()

    def name_after(self, operation: str, model: str) -> None:
        """What is done with which model: `{operation} {model}`."""
        self._name = call_span_name(operation, model)
        self._attributes[Attr.OPERATION] = operation
        self._attributes[Attr.REQUEST_MODEL] = model

    def set(self, key: Attr, value: Value) -> None:
        self._attributes[key] = value

    def set_session(self, session_id: str | None) -> None:
        """The session that the call is about, if it is about one."""
        if session_id is not None:
            self._attributes[Attr.SESSION_ID] = self._attributes[Attr.CONVERSATION_ID] = session_id

    def link(self, context: SpanContext, relation: Relation) -> None:
        self._links.append(Link(context, relation))

    def end(self, code: str, number: int, message: str = "") -> None:
        """`code` and `number`: of the gRPC status, as in `CANCELLED` and 1. Idempotent."""
        tracer, self._tracer = self._tracer, None
        if tracer is None or self.context is None:
            return
        self._attributes[Attr.RPC_STATUS] = number
        status = SpanStatus.UNSET
        if code != _OK:
            self._attributes[Attr.ERROR_TYPE] = code
            status = SpanStatus.UNSET if code in _CLIENTS_FAULT else SpanStatus.ERROR
        tracer.end(
            FinishedSpan(
                name=self._name,
                context=self.context,
                parent_span_id=self._parent.span_id if self._parent is not None else "",
                kind=SpanKind.SERVER,
                start_ns=self._start_ns,
                end_ns=max(tracer.timeline.now_ns(), self._start_ns),
                attributes=self._attributes,
                links=tuple(self._links),
                status=status,
                status_message=message if status is SpanStatus.ERROR else "",
            )
        )
