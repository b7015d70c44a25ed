"""A job's spans, sent by OTLP over HTTP or gRPC, as OpenTelemetry's variables say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from elasticdl.errors import TransientError
from elasticdl.tracking.choice import GRPC, endpoint_of, protocol_of
from elasticdl.tracking.spans import Span, span_id, trace_id
from elasticdl.tracking.tracker import Run, RunEnd

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_JOB = "job"
_MOST = 256
"""Spans of one request."""


@final
class OtlpTraces:
    """See `Tracker`. Each span has the same ids whoever sends it, so a repetition is none."""

    name = "OTLP"

    def __init__(self) -> None:
        self._exporter: SpanExporter | None = None
        self._resource: Resource | None = None
        self._run = ""
        self._sampled = True

    def open(self, run: Run) -> str:
        os.environ.setdefault("OTEL_SERVICE_NAME", "elasticdl")
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._run, self._exporter = run.key, _exporter()
        self._resource = Resource.create(
            {"elasticdl.job": run.name, "elasticdl.job_dir": str(run.job_dir)}
        )
        # The job is a trace: OTEL_TRACES_SAMPLER takes all of its spans, or none.
        sampler = TracerProvider(shutdown_on_exit=False).sampler
        decision = sampler.should_sample(None, trace_id(run.key), _JOB).decision
        self._sampled = decision.is_sampled()
        return f"trace {trace_id(run.key):032x} at {endpoint_of(os.environ)}"

    def log(self, rows: Sequence[Span]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        assert self._exporter is not None
        for begin in range(0, len(rows) if self._sampled else 0, _MOST):
            part = [self._span(span) for span in rows[begin : begin + _MOST]]
            if self._exporter.export(part) is not SpanExportResult.SUCCESS:
                raise TransientError(f"{endpoint_of(os.environ)} did not take the spans")
        return True

    def leave(self) -> None:
        """See `Tracker`."""

    def close(self, end: RunEnd) -> None:
        """See `Tracker`. The span of the job came with its last event."""

    def _span(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(key: str) -> SpanContext:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(trace_id(self._run), span_id(self._run, key), False, flags)

        return ReadableSpan(
            span.name,
            context=context(_JOB if span.is_job else span.key),
            parent=None if span.is_job else context(_JOB),
            resource=self._resource,
            attributes=dict(span.attributes),
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=round(span.begin * 1e9),
            end_time=round(span.end * 1e9),
        )


def _exporter() -> SpanExporter:
    """An exporter for the environment's protocol; it reads the other variables itself."""
    if protocol_of(os.environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        return over_grpc.OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

    return over_http.OTLPSpanExporter()
