"""Spans of a job from the lines of events.jsonl: each line that tells how long something took."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from elasticdl.history.job_event import EventStep, JobEvent, Value, job_event

_BAD = ("warning", "error")


@final
@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time, in unix seconds. The one with `is_job` is the parent of all."""

    name: str
    begin: float
    end: float
    key: str
    """Tells it from all other spans of the job, whoever sends it."""
    attributes: Mapping[str, Value]
    failed: bool = False
    is_job: bool = False


def span_of(row: Mapping[str, Any]) -> Span | None:
    """Return the span that ends with an event; None if the event ends none."""
    try:
        event = job_event(row, 0)
    except ValueError:
        return None
    named = _named(event)
    if named is None:
        return None
    name, lasted_s = named
    attributes: dict[str, Value] = {
        f"elasticdl.{key}": value for key, value in event.details.items() if key != "step"
    }
    for key, value in (("text", event.text), ("process", event.process), ("cause", event.cause)):
        if value:
            attributes[f"elasticdl.{key}"] = value
    return Span(
        name,
        event.at - lasted_s,
        event.at,
        str(event.seq),
        attributes,
        failed=event.level in _BAD,
        is_job=name == "job",
    )


def _named(event: JobEvent) -> tuple[str, float] | None:
    """Return the name and the seconds of what the event ends."""
    number = event.number
    match event.kind, event.step:
        case "job", EventStep.ENDED:
            return "job", event.at_s  # seconds since the job began
        case "job", EventStep.BEGUN if number("away_s") > 0:
            return "without a master", number("away_s")
        case "job", EventStep.PHASE:
            return f"phase {event.details.get('before', '')}", number("before_s")
        case "process", EventStep.READY:
            return "start of a process", number("after_s")
        case "process", EventStep.ENDED | EventStep.LOST:
            return "process", number("ready_for_s")
        case "wait", EventStep.ENDED:
            return f"wait for {event.details.get('wait', '')}", number("waited_s")
        case "stall", EventStep.ENDED:
            return "stall", number("waited_s")
        case "ring", EventStep.COMPLETE:
            return "ring forms", number("seconds")
        case "checkpoint", EventStep.SAVED:
            return "checkpoint", number("seconds")
        case "shard", EventStep.ENDED:  # of the sample of shards that has such events
            return "shard", number("seconds")
        case "evaluation", EventStep.ENDED:
            return "evaluation", number("seconds")
        case _:
            return None


def trace_id(run: str) -> int:
    """Return the id of a run's trace, the same for all masters of its job."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:16], "big") or 1


def span_id(run: str, key: str) -> int:
    """Return the id of a span, the same whoever sends it."""
    return int.from_bytes(hashlib.sha256(f"{run}/{key}".encode()).digest()[:8], "big") or 1
