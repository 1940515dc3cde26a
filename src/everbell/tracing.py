"""OpenTelemetry: a span for each scheduled event and one for each attempt to deliver it.

An attempt may run two years after the request that scheduled it, so it is not a child of that request: it starts a
new trace that links to the scheduling span. The caller's `traceparent` is the parent of the scheduling span. The
event stores the `traceparent` of the scheduling span. The receiver gets the `traceparent` of the attempt.

The SDK does batching, sampling (`OTEL_TRACES_SAMPLER`) and retries while the collector is away. Without `--otlp`
this module is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from everbell.channels.port import Delivery
from everbell.core.retry import Outcome
from everbell.core.spec import Draft

# No parent, even if the process has a current span.
_ROOT = set_span_in_context(NonRecordingSpan(SpanContext(0, 0, is_remote=False)))


class Tracing:
    """Makes spans and passes them to a processor."""

    def __init__(self, processor: SpanProcessor, node: str) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "everbell", "service.instance.id": node}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("everbell")

    def schedule(self, tenant: str, drafts: Sequence[Draft]) -> tuple[list[Draft], list[Span]]:
        """Begin a span for each draft; the returned drafts carry its context."""
        spans = [self._begin_scheduling(tenant, draft) for draft in drafts]
        traced = [replace(draft, traceparent=traceparent_of(span)) for draft, span in zip(drafts, spans, strict=True)]
        return traced, spans

    def scheduled(self, spans: Sequence[Span], results: Sequence[Any]) -> None:
        """End the spans of events that were stored or refused."""
        for span, result in zip(spans, results, strict=True):
            if isinstance(result, Exception):
                span.set_attribute("everbell.result", type(result).__name__)
                span.set_status(StatusCode.ERROR, str(result))
            else:
                span.set_attribute("everbell.id", result if isinstance(result, str) else result.id)
                span.set_attribute("everbell.result", "scheduled")
            span.end()

    def attempt(self, delivery: Delivery, now: int) -> Span:
        """Begin the span of an attempt."""
        event = delivery.event
        scheduling = context_of(event.traceparent)
        return self._tracer.start_span(
            "everbell.deliver",
            _ROOT,
            SpanKind.CLIENT,
            {
                "everbell.tenant": event.tenant,
                "everbell.id": event.origin or event.id,
                "everbell.occurrence": event.occurrence,
                "everbell.attempt": delivery.attempt,
                "everbell.target": event.to.partition("?")[0],
                "everbell.lateness_ms": now - event.run_at,
            },
            [] if scheduling is None else [Link(scheduling)],
        )

    def attempted(self, span: Span, outcome: Outcome) -> None:
        """End the span of an attempt."""
        span.set_attribute("everbell.result", outcome.result)
        if outcome.code is not None:
            span.set_attribute("http.response.status_code", outcome.code)
        if outcome.result != "delivered":
            span.set_status(StatusCode.ERROR, outcome.reason)
        span.end()

    def current(self) -> str | None:
        """The trace context of the calling program's current span, if any."""
        span = get_current_span()
        return traceparent_of(span) if span.get_span_context().is_valid else None

    def close(self) -> None:
        """Send the buffered spans. Blocks at most for the exporter's timeout."""
        self._provider.shutdown()

    def _begin_scheduling(self, tenant: str, draft: Draft) -> Span:
        caller = context_of(draft.traceparent)
        parent = _ROOT if caller is None else set_span_in_context(NonRecordingSpan(caller))
        attributes: Mapping[str, str | int] = {
            "everbell.tenant": tenant,
            "everbell.target": draft.to.partition("?")[0],
            "everbell.due_at": draft.due_at,
        }
        return self._tracer.start_span("everbell.schedule", parent, SpanKind.PRODUCER, attributes)


def open_tracing(url: str, node: str) -> Tracing:
    """Send spans to a collector that speaks OTLP over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    endpoint = url if "/v1/" in url else url.rstrip("/") + "/v1/traces"
    return Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)), node)


def traceparent_of(span: Span) -> str:
    """The trace context of a span in W3C format."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def context_of(traceparent: str | None) -> SpanContext | None:
    """The span that a trace context names; None if it names none."""
    if traceparent is None:
        return None
    _, trace, span, flags = traceparent.split("-")
    context = SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return context if context.is_valid else None
