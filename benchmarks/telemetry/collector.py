"""`python -m benchmarks.telemetry.collector`: takes all that telemetry sends, and keeps nothing of it.

Says its OTLP address on the first line; then takes, on standard input, the addresses to scrape and to subscribe to.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import grpc
import zmq
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

SCRAPE_S = 1.0


class _Traces(trace_grpc.TraceServiceServicer):
    def Export(  # noqa: N802 - the name in the proto
        self, request: trace_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_pb2.ExportTraceServiceResponse:
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def Export(  # noqa: N802 - the name in the proto
        self, request: metrics_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.ExportMetricsServiceResponse:
        return metrics_pb2.ExportMetricsServiceResponse()


def scrape(url: str) -> None:
    while True:
        time.sleep(SCRAPE_S)
        with urlopen(url) as page:  # noqa: S310 - loopback
            page.read()


def listen(endpoint: str) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe(b"")
    while True:
        socket.recv_multipart()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(), server)  # type: ignore[no-untyped-call]  # generated
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(), server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    for work in (scrape, listen):
        threading.Thread(target=work, args=(sys.stdin.readline().strip(),), daemon=True).start()
    sys.stdin.read()  # until whoever started it is gone


if __name__ == "__main__":
    main()
