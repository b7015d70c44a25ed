"""One entry of the diagnosis of a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

OTHERS = "others"
"""`recovered_by` when existing workers finished a lost worker's work before a replacement came."""


class What(StrEnum):
    """What an entry is about."""

    EXIT = "exit"
    WAIT = "wait"
    START = "start"
    PHASE = "phase"
    RING = "ring"
    NOTE = "note"
    """Another problem, or a user's request."""


@dataclass(slots=True)
class DiagnosisEntry:
    """One entry of the story.

    `at_s` is when it began. `seconds` is its duration, or None if it has none or is still open.
    """

    at: float
    at_s: float
    what: What
    text: str
    process: str = ""
    cause: str = ""
    seconds: float | None = None
    level: str = "info"
    open: bool = False
    """It continues."""
    replaced_by: str = ""
    recovered_s: float | None = None
    """Of an exit: seconds until a successor took over, or the ring continued without it."""
    recovered_by: str = ""
    """The successor, `ring` or `others`."""
    records: int = 0
    """Of an exit: records that the process trained, including reconciled ones."""
    frames: str = ""
    """Where the process was in the user's code: a line a frame, outermost first."""

    def as_dict(self, now_s: float) -> dict[str, Any]:
        """Return all fields, for JSON. An open entry lasts until `now_s`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["what"] = str(self.what)
        if self.open:
            fields["seconds"] = max(0.0, now_s - self.at_s)
        for key in ("at", "at_s", "seconds"):
            fields[key] = None if fields[key] is None else round(fields[key], 3)
        return fields
