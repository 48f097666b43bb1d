"""Sends spans that have ended to a collector: in portions, from a thread of its own, and waits for nobody."""

import queue
import threading
from collections import deque
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter as Client
from opentelemetry.sdk.trace.export import SpanExportResult

from telemetry.export.connection import Signal, exporter_errors
from telemetry.export.conversion import SpanConverter
from telemetry.export.outage import Outage
from telemetry.export.sdk_log import ThreadLog
from telemetry.export.settings import SpanExport, read_span_export
from telemetry.settings import TelemetrySettings
from telemetry.spans.record import FinishedSpan

_CUT_S = 0.15
"""How long the thread may take to end once its call was cancelled."""


class SpanExporter:
    """A `SpanTarget`. What finds no place in the queue, or is not taken by the collector, is dropped and counted.

    Every span that is to be exported ends up in `exported` or in `dropped`, once it is closed.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        resource: Resource,
        make_client: Callable[[SpanExport], Client] | None = None,
    ) -> None:
        """`settings` export spans: see `read_span_export`, whose VariableError is raised here, too."""
        export = read_span_export(settings)
        assert export is not None, "no spans are exported with these settings"
        self._export = export
        self._client = (make_client or _make_client)(export)
        self._converter = SpanConverter(resource)
        self._outage = Outage(export.connection.endpoint)
        # Filled by the event loop's thread, emptied by the other; appending and popping are atomic.
        self._waiting: deque[FinishedSpan] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # putting something in never waits
        self._is_woken = False
        self._is_closed = False
        self._refused = 0
        self._overflows_told = 0
        self._books = threading.Lock()
        """Of the two threads that may end an export: its own, and the one that closes. Never taken by `take`."""
        self._in_flight = 0
        self._exported = 0
        self._lost = 0
        self._is_over = False
        self._is_client_shut = False
        self._thread = threading.Thread(target=self._run, name="tenure-spans", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where spans go."""
        return self._export.connection.endpoint

    @property
    def exported(self) -> int:
        """Spans that the collector has taken."""
        return self._exported

    @property
    def dropped(self) -> int:
        """Spans that found no place, were not taken by the collector, or were left when it was closed."""
        left = len(self._waiting) if self._is_over else 0
        return self._refused + self._lost + left

    def take(self, span: FinishedSpan) -> None:
        """On the event loop's thread; a quarter of a microsecond. Never waits and never fails."""
        if not span.context.is_sampled:
            return
        waiting = self._waiting
        if self._is_closed or len(waiting) >= self._export.queue_max:
            self._refused += 1
            return
        waiting.append(span)
        if not self._is_woken and len(waiting) >= self._export.batch_max:
            self._is_woken = True
            self._wake.put(None)

    def close(self, timeout_s: float) -> None:
        """Sends what waits, for so long at most, then gives up what is left; not 0.2 s longer, whatever the collector
        does. Idempotent.
        """
        self._is_closed = True
        self._wake.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._shut_client()  # cancels the call in flight, and wakes who waits for the next try
            self._thread.join(_CUT_S)
        with self._books:
            if self._is_over:
                return
            self._is_over = True
            self._lost += self._in_flight
            self._in_flight = 0
        self._outage.ended(self.dropped)

    # Its own thread

    def _run(self) -> None:
        with ThreadLog() as heard:
            while not self._is_closed:
                is_full = self._wait()
                num_waiting = len(self._waiting)
                self._send(heard, num_waiting - num_waiting % self._export.batch_max if is_full else num_waiting)
            self._send(heard, len(self._waiting))
            self._shut_client()

    def _wait(self) -> bool:
        """Until a batch is full, or some time has passed. Whether it is full."""
        try:
            self._wake.get(timeout=self._export.delay_s)
        except queue.Empty:
            return False
        self._is_woken = False  # before the queue is looked at: a span that comes after that wakes us again
        return True

    def _send(self, heard: ThreadLog, num_spans: int) -> None:
        """So many of those that wait, and not those that come meanwhile: they would go out in portions of a few."""
        while num_spans > 0:
            size = min(num_spans, self._export.batch_max)
            with self._books:
                if self._is_client_shut:
                    return
                batch = [self._waiting.popleft() for _ in range(size)]
                self._in_flight = size
            self._send_batch(batch, heard)
            num_spans -= size

    def _send_batch(self, batch: list[FinishedSpan], heard: ThreadLog) -> None:
        lost_before = self._refused + self._lost
        is_taken = self._hand_over(batch, heard)
        with self._books:
            if self._is_over:
                return  # who closed has counted it
            self._in_flight = 0
            if is_taken:
                self._exported += len(batch)
            else:
                self._lost += len(batch)
        self._tell(is_taken, heard.cause, lost_before)

    def _hand_over(self, batch: list[FinishedSpan], heard: ThreadLog) -> bool:
        """Whether the collector has taken it, after all tries."""
        heard.cause = ""
        try:
            result = self._client.export([self._converter.convert(span) for span in batch])
        except Exception as error:  # allowed (ADR 5): code of others, which lets through what a closed channel raises
            heard.cause = "" if self._is_client_shut else f"{type(error).__name__}: {error}"
            return False
        return result is SpanExportResult.SUCCESS

    def _tell(self, is_taken: bool, cause: str, lost_before: int) -> None:
        overflows, self._overflows_told = self._refused - self._overflows_told, self._refused
        if not is_taken:
            self._outage.failed(cause, lost_before)
        elif overflows:
            self._outage.overflowed(self._refused + self._lost - overflows)
        else:
            self._outage.recovered(self._refused + self._lost)

    def _shut_client(self) -> None:
        with self._books:
            is_first = not self._is_client_shut
            self._is_client_shut = True
        if is_first:
            self._client.shutdown()


def _make_client(export: SpanExport) -> Client:
    connection = export.connection
    with exporter_errors(Signal.TRACES):
        return OTLPSpanExporter(
            endpoint=connection.url,
            insecure=connection.is_insecure,
            headers=connection.headers,
            timeout=export.timeout_s,
            compression=connection.compression,
        )
