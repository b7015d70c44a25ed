"""The job's state for the page, copied at most twice a second however many readers there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from elasticdl.cluster.base import Cluster, ProcessName
from elasticdl.history.event_log import EventLog
from elasticdl.history.snapshot import About, StatusReading, record_of, snapshot
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.outcome import Outcome, end_state
from elasticdl.master.core.events import Event
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.status.collector import Collector
from elasticdl.master.status.responses import Refusal

FRESH_S = 0.5
_HANDLED_WITHIN_S = 10.0
_EVENTS_AT_ONCE = 200
"""Reading so many takes some milliseconds."""
_STATES: dict[str, str] = {
    Phase.STARTING: "starting",
    Phase.WORKING: "running",
    Phase.EVALUATING: "evaluating",
    Phase.DRAINING: "stopping",
    Phase.CHECKPOINTING: "taking the last checkpoint",
    Phase.EXPORTING: "exporting",
}


def job_status(core: JobState, gateway: ProcessGateway) -> JobStatus:
    """Return the core's status with the measurements of processes."""
    status = core.status()
    # The rate of the last seconds is meaningless for an ended job.
    over = status.phase in (Phase.ENDING, Phase.ENDED)
    rate = 0.0 if over else gateway.records_per_s()
    listed = [ProcessName.parse(process.name) for process in status.processes]
    return replace(status, gauges=gateway.gauges(listed), records_per_s=rate)


def state_in_words(status: JobStatus) -> str:
    """Return the state in one or two words, for the head of a page."""
    phase, code = status.phase, status.exit_code
    if code is not None and phase in (Phase.ENDING, Phase.ENDED):
        return end_state(code)
    if phase == Phase.WORKING and not status.scale.observed:
        return "waiting for workers"
    return _STATES.get(phase or "", "ending")


@final
class JobView:
    """A cached view of the job. Use it from the master's event loop."""

    def __init__(
        self,
        about: About,
        core: JobState,
        gateway: ProcessGateway,
        queue: EventQueue,
        event_log: EventLog,
        collector: Collector,
    ) -> None:
        self.about = about
        self.core, self._gateway, self._queue = core, gateway, queue
        self.event_log = event_log
        self.collector = collector
        self.cluster: Cluster | None = None
        """Set once processes can start."""
        self._reading: StatusReading | None = None
        self._read_s = 0.0

    async def all_events_read(self, pause_s: float = 0.0) -> None:
        """Read the older events of earlier masters, in portions with a pause between.

        Await it before `snapshot` and `timeline`, which would read the rest at once.
        """
        while self.event_log.catch_up(_EVENTS_AT_ONCE):
            await asyncio.sleep(pause_s)

    def expire(self) -> None:
        """Make the next reading current."""
        self._reading = None

    def reading(self) -> StatusReading:
        """Return the status, at most half a second old."""
        now_s = self._queue.clock.now_s()
        if self._reading is None or now_s - self._read_s >= FRESH_S:
            status = job_status(self.core, self._gateway)
            view_age_s = self.cluster.view_age_s if self.cluster is not None else None
            wall_s = self._queue.clock.wall_s()
            self._reading = StatusReading(
                self.about, status, state_in_words(status), wall_s, view_age_s
            )
            self._read_s = now_s
        return self._reading

    def snapshot(self) -> dict[str, object]:
        """Return all data of the page."""
        reading = self.reading()
        record = record_of(self.event_log, reading.status)
        return snapshot(reading, record, self.collector.as_list(), self.outcome())

    def timeline(self) -> Mapping[str, Any]:
        """Return bars, generations and marks."""
        return record_of(self.event_log, self.reading().status).timeline

    def outcome(self) -> Outcome | None:
        """Return how the job ended; None while it runs."""
        status = self.reading().status
        if status.exit_code is None or status.phase != Phase.ENDED:
            return None
        return Outcome(status.exit_code, status.outcome or "")

    def at_s(self) -> float:
        return self._queue.at_s()

    async def post(self, event: Event) -> None:
        """Post an event and return when the core has handled it.

        Raises Refusal: 409 after the end of the job, 503 after a timeout.
        """
        over = Refusal(409, "the job has ended", "continue it with --resume, or read its report")
        if self.core.over:
            raise over
        try:
            async with asyncio.timeout(_HANDLED_WITHIN_S):
                # Shielded: after a timeout the event is still in the queue and takes effect later.
                await asyncio.shield(self._queue.post(event))
        except TimeoutError as error:
            raise Refusal(
                503,
                f"the master did not handle the request within {_HANDLED_WITHIN_S:g} s",
                "check later whether it took effect",
            ) from error
        except asyncio.CancelledError:
            if self.core.over:
                raise over from None
            raise
