"""Which traces are exported: OpenTelemetry's samplers, chosen by its variables."""

from collections.abc import Callable, Mapping

from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBasedTraceIdRatio,
    TraceIdRatioBased,
)
from opentelemetry.sdk.trace.sampling import Sampler as SdkSampler
from opentelemetry.trace import NonRecordingSpan, TraceFlags, set_span_in_context
from opentelemetry.trace import SpanContext as SdkSpanContext

from telemetry.export.variables import VariableError, read_text
from telemetry.spans.record import SpanContext

_SAMPLER, _ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_DEFAULT = "parentbased_always_on"
_FIXED: Mapping[str, SdkSampler] = {
    "always_on": ALWAYS_ON,
    "always_off": ALWAYS_OFF,
    _DEFAULT: DEFAULT_ON,
    "parentbased_always_off": DEFAULT_OFF,
}
_BY_RATIO: Mapping[str, Callable[[float], SdkSampler]] = {
    "traceidratio": TraceIdRatioBased,
    "parentbased_traceidratio": ParentBasedTraceIdRatio,
}


class EnvironmentSampler:
    """A `telemetry.spans.tracer.Sampler`: `OTEL_TRACES_SAMPLER` with `OTEL_TRACES_SAMPLER_ARG`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises VariableError."""
        self._sampler = _read_sampler(environment)

    def is_sampled(self, trace_id: str, parent: SpanContext | None, name: str) -> bool:
        """`parent`: a span of another process; those of our own do as their root does."""
        context = None
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
            above = SdkSpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(above))
        result = self._sampler.should_sample(context, int(trace_id, 16), name)
        return result.decision is Decision.RECORD_AND_SAMPLE


def _read_sampler(environment: Mapping[str, str]) -> SdkSampler:
    name = (read_text(environment, _SAMPLER) or _DEFAULT).lower()
    if name in _FIXED:
        return _FIXED[name]
    if name not in _BY_RATIO:
        raise VariableError(_SAMPLER, f"must be one of {', '.join((*_FIXED, *_BY_RATIO))}, not {name!r}")
    text = read_text(environment, _ARGUMENT) or "1.0"
    try:
        return _BY_RATIO[name](float(text))
    except ValueError:
        raise VariableError(_ARGUMENT, f"must be a number from 0 to 1, not {text!r}") from None
