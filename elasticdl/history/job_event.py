"""One event of a job: a line of events.jsonl.

`docs/reference/files.md` lists the keys of `details`.
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
"""Limit of a text. The process's log has the full traceback."""


class EventStep(StrEnum):
    """Values of `details["step"]`: the meaning of a line, for programs."""

    BEGUN = "begun"
    """A master (kind `job`), a wait or an evaluation began."""
    ENDED = "ended"
    """A process, a wait, an evaluation or the job ended."""
    ORDERED = "ordered"
    READY = "ready"
    WORKING = "working"
    """A process made its first progress."""
    STOPPING = "stopping"
    LOST = "lost"
    """The master gave a process up before it saw the process end."""
    EXPLAINED = "explained"
    """The platform reported later why a process was lost."""
    PHASE = "phase"
    PUBLISHED = "published"
    """The master published a generation of the ring."""
    COMPLETE = "complete"
    """All members of a generation have joined it."""
    MASTER_ENDED = "master_ended"
    """A master ended before its job did."""
    AUTOSCALED = "autoscaled"
    """The master chose a number of workers, or confirmed one; `details` has what it measured."""
    SAVED = "saved"
    FAILED = "failed"


def meaning(step: EventStep, **values: Value) -> dict[str, Value]:
    """Return details for programs. Durations are rounded to milliseconds."""
    return {
        "step": str(step),
        **{
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in values.items()
        },
    }


@final
@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event. `seq` counts from 0; `at` is unix time; `at_s` is seconds since the job began."""

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
        """A value of `EventStep`, or '' if the line is only for people."""
        return str(self.details.get("step", ""))

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a number of the details, or `default`."""
        value = self.details.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def as_dict(self) -> dict[str, Any]:
        """Return the line as plain values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "details": dict(self.details)}


def job_event(row: Mapping[str, Any], seq: int) -> JobEvent:
    """Parse a line; `seq` is the default for a line without one.

    Raises ValueError if the line is invalid.
    """
    try:
        details = row.get("details") or {}
        number = int(row.get("seq", seq))
        if not 0 <= number < _MOST_SEQ:
            raise ValueError(f"invalid event: seq {number}")
        return JobEvent(
            seq=number,
            at=_finite(row["at"]),
            at_s=_finite(row["at_s"]),
            kind=characters(str(row["kind"])),
            text=bounded(str(row.get("text", ""))),
            process=characters(str(row.get("process") or "")),
            cause=characters(str(row.get("cause") or "")),
            level=characters(str(row.get("level") or "info")),
            details=whole_values(details),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"invalid event: {error!r}") from error


def whole_values(details: Mapping[Any, Any]) -> dict[str, Value]:
    """Return the details that are texts or numbers, without lone surrogates."""
    return {
        characters(str(key)): characters(value) if isinstance(value, str) else value
        for key, value in details.items()
        if _is_value(value)
    }


def _is_value(value: object) -> bool:
    """Return whether it is a text, or a number that fits into a float."""
    return isinstance(value, str) or (
        isinstance(value, int | float) and -_LARGEST < value < _LARGEST
    )


def _finite(value: Any) -> float:  # noqa: ANN401 - any JSON value
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"invalid event: time {number}")
    return number


def bounded(text: str) -> str:
    """Truncate a text to 8,000 characters, without lone surrogates."""
    text = characters(text)
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]} … ({len(text) - MOST_CHARS:,} characters more: see the log)"
