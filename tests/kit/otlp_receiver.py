"""A collector in this process: takes spans and metrics by OTLP over gRPC, or does what a test wants of a bad one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

_WAIT_S = 30.0


@dataclass(slots=True)
class Behaviour:
    """What it does with an export. Changed at any time."""

    is_blocked: bool = False
    """Takes the call, and answers none."""
    delay_s: float = 0.0
    refuse_next: int = 0
    """So many calls end with `refusal`, the next ones well."""
    refusal: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


@dataclass(slots=True)
class OtlpReceiver:
    """What came, in order, and how it behaves."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    traces: list[ResourceSpans] = field(default_factory=list)
    resource_metrics: list[ResourceMetrics] = field(default_factory=list)
    num_calls: int = 0
    """Also those that were refused or not answered."""
    called: threading.Event = field(default_factory=threading.Event)
    """Set by each call; a test may clear it."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends what blocks."""
    endpoint: str = ""

    @property
    def spans(self) -> list[Span]:
        return [span for each in self.traces for scope in each.scope_spans for span in scope.spans]

    @property
    def metrics(self) -> list[Metric]:
        return [metric for each in self.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]

    def refusal(self) -> grpc.StatusCode | None:
        """Does what it is told with one more call. None: it is taken."""
        self.num_calls += 1
        self.called.set()
        if self.behaviour.is_blocked:
            self.released.wait(_WAIT_S)
            return grpc.StatusCode.UNAVAILABLE
        if self.behaviour.delay_s:
            self.released.wait(self.behaviour.delay_s)
        if self.behaviour.refuse_next:
            self.behaviour.refuse_next -= 1
            return self.behaviour.refusal
        return None


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(  # noqa: N802 - the name in the proto
        self, request: trace_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_pb2.ExportTraceServiceResponse:
        refusal = self._receiver.refusal()
        if refusal is not None:
            context.abort(refusal, "as the test wants")
        self._receiver.traces += request.resource_spans
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(  # noqa: N802 - the name in the proto
        self, request: metrics_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.ExportMetricsServiceResponse:
        refusal = self._receiver.refusal()
        if refusal is not None:
            context.abort(refusal, "as the test wants")
        self._receiver.resource_metrics += request.resource_metrics
        return metrics_pb2.ExportMetricsServiceResponse()


@contextmanager
def receiving(port: int = 0) -> Iterator[OtlpReceiver]:
    """`endpoint` is its address; gone at the end. `port`: 0 takes any free one."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="otlp"), options=(("grpc.so_reuseport", 0),))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)  # type: ignore[no-untyped-call]  # generated
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)  # type: ignore[no-untyped-call]  # generated
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.stop(0).wait()


@contextmanager
def receiving_nothing() -> Iterator[str]:
    """The endpoint of a server that speaks HTTP/1.1, and neither gRPC nor OTLP."""

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
            """Says nothing: what comes here is no HTTP/1.1."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="no-otlp", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
