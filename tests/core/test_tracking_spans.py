"""Spans of a job are what its events say, and have the same ids whoever sends them."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.tracking.choice import Sent, endpoint_of, what_to_send, why_no_traces
from elasticdl.tracking.spans import span_id, span_of, trace_id

pytestmark = pytest.mark.core
HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def event(kind: str, step: EventStep | None, **details: float | int | str) -> dict[str, Any]:
    told = meaning(step, **details) if step else dict(details)
    return {"seq": 7, "at": 1000.0, "at_s": 100.0, "kind": kind, "text": "text", "details": told}


@pytest.mark.parametrize(
    "row, name, lasted_s",
    [
        (event("job", EventStep.PHASE, phase="training", before="starting", before_s=4.0),
         "phase starting", 4.0),
        (event("job", EventStep.BEGUN, term=2, away_s=1.5), "without a master", 1.5),
        (event("job", EventStep.ENDED, exit_code=0), "job", 100.0),
        (event("process", EventStep.READY, after_s=2.0), "start of a process", 2.0),
        (event("process", EventStep.ENDED, ready_for_s=30.0), "process", 30.0),
        (event("process", EventStep.LOST, ready_for_s=30.0), "process", 30.0),
        (event("wait", EventStep.ENDED, wait="ring", waited_s=0.5), "wait for ring", 0.5),
        (event("stall", EventStep.ENDED, waited_s=90.0), "stall", 90.0),
        (event("ring", EventStep.COMPLETE, generation=2, seconds=0.25), "ring forms", 0.25),
        (event("checkpoint", EventStep.SAVED, version=3, seconds=0.75), "checkpoint", 0.75),
        (event("evaluation", EventStep.ENDED, round=0, seconds=3.0), "evaluation", 3.0),
    ],
)  # fmt: skip
def test_an_event_that_tells_how_long_something_took_ends_a_span(
    row: dict[str, Any], name: str, lasted_s: float
) -> None:
    span = span_of(row)
    assert span is not None
    assert (span.name, span.begin, span.end) == (name, 1000.0 - lasted_s, 1000.0)
    assert span.is_job == (name == "job") and not span.failed
    assert span.attributes["elasticdl.text"] == "text" and "elasticdl.step" not in span.attributes


@pytest.mark.parametrize(
    "row",
    [
        event("job", EventStep.BEGUN, term=1, away_s=0.0),
        event("wait", EventStep.BEGUN, wait="ring"),
        event("ring", EventStep.PUBLISHED, generation=2),
        event("staleness", None),
        {"kind": "job"},
    ],
)
def test_other_lines_end_none(row: dict[str, Any]) -> None:
    assert span_of(row) is None


def test_a_bad_end_is_a_failed_span_with_its_cause() -> None:
    row = event("process", EventStep.ENDED, ready_for_s=1.0, signal=9)
    span = span_of({**row, "process": "worker-1", "cause": "infrastructure", "level": "warning"})
    assert span is not None and span.failed
    more = {"process": "worker-1", "cause": "infrastructure", "signal": 9}
    assert {f"elasticdl.{key}": value for key, value in more.items()}.items() <= (
        span.attributes.items()
    )


def test_ids_depend_on_run_and_event_only() -> None:
    assert trace_id("a") == trace_id("a") != trace_id("b")
    assert len({span_id(run, key) for run in "ab" for key in ("1", "2", "job")}) == 6
    assert 0 < trace_id("a") < 1 << 128 and 0 < span_id("a", "1") < 1 << 64


@pytest.mark.parametrize(
    "more, goes",
    [
        ({}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "h"}, True),
        ({"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_decide(
    more: dict[str, str], goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in HERE:
        monkeypatch.delenv(name, raising=False)
    assert (endpoint_of({**HERE, **more}) is not None) == goes
    flags = {"model_zoo": "/z", "model_def": "m", "training_data": "/t", "tracker": "wandb"}
    spec = JobSpec.from_flags(Action.TRAIN, {**flags, "envs": {**HERE, **more}})
    assert what_to_send(spec) == ((Sent.CURVES, Sent.TRACES) if goes else (Sent.CURVES,))


def test_a_protocol_that_is_not_spoken_is_named() -> None:
    assert why_no_traces(HERE) is None
    assert why_no_traces({**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    why = why_no_traces({**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    assert why is not None and "http/protobuf or grpc" in why
