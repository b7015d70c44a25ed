"""One thing that happened in a job, as a line of events.jsonl tells it.

`docs/reference/files.md` has the words of `details`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, final

from elasticdl.formatting import characters

Value: TypeAlias = float | int | str
_LARGEST = 1e300
_MOST_SEQ = 1 << 53
MOST_CHARS = 8_000
"""Of a text: a traceback in full is in the log of its process."""


class EventKind(StrEnum):
    """`details["step"]`: what a line means, for whoever reads it by program."""

    BEGUN = "begun"
    """Of a master (kind `job`), a wait or an evaluation."""
    ENDED = "ended"
    """Of a process, a wait, an evaluation or the job."""
    ORDERED = "ordered"
    READY = "ready"
    WORKING = "working"
    """A process made its first progress."""
    STOPPING = "stopping"
    LOST = "lost"
    """A process was given up before its end was seen."""
    EXPLAINED = "explained"
    """The platform told later why a process was lost."""
    PHASE = "phase"
    PUBLISHED = "published"
    """A generation of the ring."""
    COMPLETE = "complete"
    """All members of a generation are in it."""
    SAVED = "saved"
    FAILED = "failed"


def meaning(step: EventKind, **values: Value) -> dict[str, Value]:
    """Details of a line that programs read. Durations are rounded to milliseconds."""
    return {
        "step": str(step),
        **{key: round(one, 3) if isinstance(one, float) else one for key, one in values.items()},
    }


@final
@dataclass(frozen=True, slots=True)
class JobEvent:
    """`seq` counts from 0 in the order of the file; `at` is unix time, `at_s` seconds since the job
    began.
    """

    seq: int
    at: float
    at_s: float
    kind: str
    text: str
    process: str = ""
    cause: str = ""
    level: str = "info"
    details: Mapping[str, Value] = field(default_factory=dict)

    @property
    def step(self) -> str:
        """One of `EventKind`, or '' where the line is for people only."""
        return str(self.details.get("step", ""))

    def number(self, name: str, default: float = 0.0) -> float:
        """A number of the details; `default` where there is none."""
        value = self.details.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def as_dict(self) -> dict[str, Any]:
        """A line of the file."""
        return {
            "seq": self.seq,
            "at": self.at,
            "at_s": self.at_s,
            "kind": self.kind,
            "text": self.text,
            "process": self.process,
            "cause": self.cause,
            "level": self.level,
            "details": dict(self.details),
        }


def job_event(found: Mapping[str, Any], seq: int) -> JobEvent:
    """The value of a line; `seq` is used where it has none.

    Raises ValueError for what is no such line.
    """
    try:
        details = found.get("details") or {}
        number = int(found.get("seq", seq))
        if not 0 <= number < _MOST_SEQ:
            raise ValueError(f"no occurrence: number {number}")
        return JobEvent(
            seq=number,
            at=_finite(found["at"]),
            at_s=_finite(found["at_s"]),
            kind=characters(str(found["kind"])),
            text=bounded(str(found.get("text", ""))),
            process=characters(str(found.get("process") or "")),
            cause=characters(str(found.get("cause") or "")),
            level=characters(str(found.get("level") or "info")),
            details=whole_values(details),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no occurrence: {error!r}") from error


def whole_values(details: Mapping[Any, Any]) -> dict[str, Value]:
    """Those of the details that are texts or numbers; texts in whole characters."""
    kept = {str(key): value for key, value in details.items() if _is_value(value)}
    return {
        characters(key): characters(value) if isinstance(value, str) else value
        for key, value in kept.items()
    }


def _is_value(value: object) -> bool:
    """Text, or a number that a float can hold."""
    return isinstance(value, str) or (
        isinstance(value, int | float) and -_LARGEST < value < _LARGEST
    )


def _finite(value: Any) -> float:  # noqa: ANN401 - any JSON value
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"no occurrence: at {number}")
    return number


def bounded(text: str) -> str:
    """At most 8,000 characters of it, all of them whole."""
    text = characters(text)
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]} … ({len(text) - MOST_CHARS:,} characters more: see the log)"
