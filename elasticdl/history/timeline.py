"""Build the membership timeline from events: process bars, ring generations and marks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any, final

from elasticdl.history.compaction import HISTORY
from elasticdl.history.job_event import EventStep, JobEvent
from elasticdl.job_status import ProcessStatus

MOST_ENDED_BARS = 2_000
MOST_MARKS = 500
MOST_GENERATIONS = 500
_MARKED = ("checkpoint", "evaluation", "scale", "server", "memory", "export", HISTORY)
_UNSEEN = "its end was not recorded: its master was replaced"


@dataclass(slots=True)
class Bar:
    """A process from its launch command to its end. Unknown times are None."""

    process: str
    role: str
    ordered_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    state: str = "requested"
    cause: str = ""
    text: str = ""
    where: str = ""
    replaces: str = ""


@final
@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of the ring, from its publication.

    `reason` says why the master published a new generation.
    """

    generation: int
    at_s: float
    members: tuple[str, ...]
    reason: str


@final
@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event that concerns neither a process nor a generation."""

    at_s: float
    kind: str
    text: str


def _plain(bar: Bar) -> dict[str, Any]:
    # `asdict` copies deeply, which is ten times slower, and there may be thousands of rows.
    return {name: getattr(bar, name) for name in Bar.__slots__}


@final
class Timeline:
    """Build a timeline from events in order. Keep the newest 2,000 ended processes."""

    def __init__(self) -> None:
        self._going: dict[str, Bar] = {}
        self._ended: deque[Bar] = deque(maxlen=MOST_ENDED_BARS)
        self._generations: deque[Generation] = deque(maxlen=MOST_GENERATIONS)
        self._marks: deque[TimelineEvent] = deque(maxlen=MOST_MARKS)
        self._bars = 0
        self._at_s = 0.0

    def add(self, event: JobEvent) -> None:
        self._at_s = max(self._at_s, event.at_s)
        match event.kind:
            case "process":
                self._process(event)
            case "ring" if event.step == EventStep.PUBLISHED:
                members = tuple(str(event.details.get("members", "")).split())
                reason = str(event.details.get("reason", event.text))
                self._generations.append(
                    Generation(int(event.number("generation")), event.at_s, members, reason)
                )
            case "job":
                self._job(event)
            case kind if kind in _MARKED or event.level == "error":
                self._marks.append(TimelineEvent(event.at_s, kind, event.text))
            case _:
                pass

    def cut_off(self, end: JobEvent) -> None:
        """Record that the master was killed, and end all processes with it."""
        for process in list(self._going):
            self._close(process, end.at_s, "killed with its master")
        self.add(end)

    def as_dict(
        self, now_s: float | None = None, processes: Mapping[str, ProcessStatus] | None = None
    ) -> dict[str, Any]:
        """Return plain values for JSON.

        `processes` are rows of the status by name. They give the current state and place of running
        processes.
        """
        going = [self._now(bar, (processes or {}).get(bar.process)) for bar in self._going.values()]
        bars = sorted((*self._ended, *going), key=lambda bar: bar.ordered_s)
        return {
            "now_s": round(self._at_s if now_s is None else now_s, 3),
            "bars": [_plain(bar) for bar in bars],
            "bars_dropped": self._bars - len(bars),
            "generations": [
                {**asdict(generation), "members": list(generation.members)}
                for generation in self._generations
            ],
            "marks": [asdict(mark) for mark in self._marks],
        }

    def _now(self, bar: Bar, row: ProcessStatus | None) -> Bar:
        if row is None or row.state == "ended":
            return bar
        now = copy(bar)
        now.state, now.where = row.state, row.where or bar.where
        now.text = row.message or bar.text
        return now

    def _process(self, event: JobEvent) -> None:
        if event.step == EventStep.ORDERED:
            self._close(event.process, event.at_s, _UNSEEN)
            role = event.process.rpartition("-")[0]
            self._going[event.process] = Bar(
                event.process, role, event.at_s, replaces=str(event.details.get("replaces", ""))
            )
            self._bars += 1
            return
        bar = self._going.get(event.process)
        match event.step:
            case EventStep.READY if bar is not None:
                bar.ready_s, bar.state = event.at_s, "ready"
                bar.where = str(event.details.get("where", ""))
            case EventStep.STOPPING if bar is not None:
                bar.state, bar.text = "stopping", str(event.details.get("reason", event.text))
            case EventStep.ENDED | EventStep.LOST if bar is not None:
                self._close(
                    event.process,
                    event.at_s,
                    str(event.details.get("reason", event.text)),
                    event.cause,
                )
            case EventStep.ENDED | EventStep.EXPLAINED:
                self._explain(event)
            case _:
                pass

    def _close(self, process: str, at_s: float, text: str, cause: str = "") -> None:
        bar = self._going.pop(process, None)
        if bar is not None:
            bar.ended_s, bar.state, bar.text, bar.cause = at_s, "ended", text, cause
            self._ended.append(bar)

    def _explain(self, event: JobEvent) -> None:
        """Correct an end's cause when the platform reports it later."""
        for bar in reversed(self._ended):
            if bar.process == event.process:
                bar.cause, bar.text = (
                    event.cause or bar.cause,
                    str(event.details.get("reason", bar.text)),
                )
                return

    def _job(self, event: JobEvent) -> None:
        if event.step == EventStep.BEGUN and "kept" not in event.details:
            # Processes of an earlier master ended with it, or are different processes by now.
            for process in list(self._going):
                self._close(process, event.at_s, _UNSEEN)
        if event.step:
            self._marks.append(TimelineEvent(event.at_s, event.kind, event.text))
