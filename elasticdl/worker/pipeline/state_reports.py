"""Add to a report what this worker has been doing for long, and on request its whole state."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import final

from elasticdl.rpc.conversation import Report, State
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.process.hang_watch import HangWatch


@final
class StateReports:
    """Thread-safe: the orders' thread asks, the reporter's thread adds."""

    def __init__(self, outbox: Outbox, watch: HangWatch) -> None:
        self._outbox = outbox
        self._watch = watch
        self._asked = threading.Event()

    def ask(self) -> None:
        """The master requests the whole state with the next report, which is due at once."""
        self._asked.set()
        self._outbox.urgent.set()

    def prepare(self) -> State | None:
        """The state if it was requested, or if leases reported as held are gone; else None.

        Call it before the outbox is emptied: it makes the outbox report every lease in hand.
        """
        if not self._asked.is_set() and not self._outbox.reported_too_many:
            return None
        # Before collecting: a question that arrives meanwhile gets an answer of its own.
        self._asked.clear()
        held, activity = self._outbox.tell_all(), self._watch.activity()
        return State(
            held,
            self._watch.stacks(),
            f"in {activity.what} for {activity.age_s:.0f} s" if activity else "",
            self._watch.frames(),
        )

    def complete(self, report: Report, state: State | None) -> Report:
        """The report with the activity and the state, if any."""
        activity = self._watch.activity()
        return replace(report, activity=activity, state=state) if activity or state else report
