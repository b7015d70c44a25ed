"""Asks processes for their whole state, and shows where their threads are."""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.history.job_event import Value
from elasticdl.master.core.commands import AskState
from elasticdl.master.core.events import StateReported
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.processes.table import Life


@final
class StateQuestions:
    """Open questions by process; each answer counts once."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._asked: dict[ProcessName, float] = {}
        """Processes that have not answered, with the time of the question."""
        self._frames: dict[ProcessName, tuple[str, ...]] = {}
        """The user's frames in each process's newest answer, outermost first."""

    def ask(self, name: ProcessName) -> None:
        """Ask a process that can answer."""
        process = self._context.processes.going.get(name)
        if process is not None and process.life in (Life.READY, Life.STOPPING):
            # Remember when: what the answer does not have may have been granted since.
            self._asked[name] = self._context.now_s
            self._context.orders.give(AskState(name))

    def answered(self, event: StateReported, level: str) -> float | None:
        """Show an answer; return when the question was asked, None if there was none.

        An unasked or late answer describes a state that may be outdated.
        """
        asked_s = self._asked.pop(event.process, None)
        process = self._context.processes.going.get(event.process)
        if asked_s is None or process is None or not process.heard:
            return None
        self._frames[event.process] = event.frames
        if event.stacks:
            doing = f", {event.doing}" if event.doing else ""
            text = f"stacks of {event.process}{doing}{self.place(event.process)}:\n{event.stacks}"
            details: dict[str, Value] = {"asked_s": round(asked_s, 3)}
            if event.frames:
                details["frames"] = "\n".join(event.frames)
            self._context.orders.announce(
                "stall", text, process=event.process, level=level, details=details
            )
        return asked_s

    def frames(self, name: ProcessName) -> tuple[str, ...]:
        """The user's frames in the newest answer of a process, outermost first."""
        return self._frames.get(name, ())

    def place(self, name: ProcessName) -> str:
        """Where a process was in the user's code, as the end of a sentence; '' if unknown."""
        frames = self._frames.get(name)
        return f", at {frames[-1]}" if frames else ""

    def forget(self, name: ProcessName) -> None:
        """A process has ended or was given up."""
        self._asked.pop(name, None)
        self._frames.pop(name, None)
