"""Which processes are attached, which of two that claim one name is the right one, and who has
fallen silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause, told_by

_LONGEST_STEP_S = 2.0
_STARVED_STEP_S = 0.5
"""A master that was stopped, or that gets too little of its machine, must not hold that against
everybody else: what it did not hear
then may well have been said. Of so late a step only this much counts.
"""


@dataclass(slots=True)
class Session:
    """An attached process."""

    instance: str
    silent_s: float = 0.0
    announced: bool = False
    """The core was told of it."""
    reports: int = 0
    """The number of its last report that was counted."""
    version: int = 0
    gauges: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    """The most memory that it told of."""

    dropped: dict[DropCause, int] = field(default_factory=dict)
    """How many messages it has dropped so far, as it told."""

    def told(self, gauges: Mapping[str, float]) -> dict[DropCause, int]:
        """Its newest gauges; returns the messages that it dropped since those before."""
        self.gauges = dict(gauges)
        self.peak_bytes = max(self.peak_bytes, int(gauges.get("rss_bytes", 0)))
        before, self.dropped = self.dropped, told_by(gauges)
        new = {cause: count - before.get(cause, 0) for cause, count in self.dropped.items()}
        return {cause: count for cause, count in new.items() if count > 0}


@final
class Sessions:
    """Attached processes by name.

    A name that left never comes back: its next incarnation has another.
    """

    def __init__(self) -> None:
        self._present: dict[ProcessName, Session] = {}
        self._left: dict[ProcessName, str] = {}

    def __contains__(self, name: ProcessName) -> bool:
        return name in self._present

    def __iter__(self) -> Iterator[tuple[ProcessName, Session]]:
        return iter(tuple(self._present.items()))

    def refusal(self, name: ProcessName, instance: str) -> str:
        """Why this process may not speak for `name`, '' if it may."""
        if name in self._left:
            return f"{name} {self._left[name]}: this process was replaced"
        present = self._present.get(name)
        if present is None:
            return f"{name} is not attached"
        return (
            ""
            if present.instance == instance
            else f"{name} is attached already, as another process"
        )

    def claim(self, name: ProcessName, instance: str) -> Session:
        """Attach a process, or find it attached; check `refusal` of a present name first."""
        return self._present.setdefault(name, Session(instance))

    def leave(self, name: ProcessName, why: str) -> bool:
        """The process is refused from now on; `why` completes "worker-3 …".

        False if it had left before.
        """
        if name in self._left:
            return False
        self._left[name] = why
        return self._present.pop(name, None) is not None

    def has_left(self, name: ProcessName) -> bool:
        """Whether the name was given up."""
        return name in self._left

    def peak_bytes(self, name: ProcessName) -> int | None:
        """The most memory that an attached process told of; None if it told nothing."""
        present = self._present.get(name)
        return (present.peak_bytes or None) if present is not None else None

    def heard(self, name: ProcessName) -> Session | None:
        """A call of an attached process came in."""
        present = self._present.get(name)
        if present is not None:
            present.silent_s = 0.0
        return present

    def pass_time(self, elapsed_s: float) -> Iterator[tuple[ProcessName, float]]:
        """Let time pass; each process with the seconds it has been silent for."""
        step_s = elapsed_s if elapsed_s <= _LONGEST_STEP_S else _STARVED_STEP_S
        for name, present in tuple(self._present.items()):
            present.silent_s += step_s
            yield name, present.silent_s
