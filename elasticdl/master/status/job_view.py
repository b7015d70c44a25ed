"""The job as onlookers see it: copies, made at most twice a second however many there are."""

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
from elasticdl.master.core.data.shard_list import ShardPage, ShardWish
from elasticdl.master.core.events import Event
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.status.collector import Collector
from elasticdl.master.status.responses import Refusal

FRESH_S = 0.5
_HANDLED_WITHIN_S = 10.0
_STATES: dict[str, str] = {
    Phase.STARTING: "starting",
    Phase.WORKING: "running",
    Phase.EVALUATING: "evaluating",
    Phase.DRAINING: "stopping",
    Phase.CHECKPOINTING: "taking the last checkpoint",
    Phase.EXPORTING: "exporting",
}


def job_status(core: JobState, desk: ProcessGateway) -> JobStatus:
    """The core's status with what processes measure."""
    status = core.status()
    # What went by in the last seconds of a job that is over says nothing of it.
    over = status.phase in (Phase.ENDING, Phase.ENDED)
    rate = 0.0 if over else desk.records_per_s()
    return replace(status, gauges=desk.gauges(), records_per_s=rate)


def state_in_words(status: JobStatus) -> str:
    """One or two words for the head of a page."""
    phase, code = status.phase, status.exit_code
    if code is not None and phase in (Phase.ENDING, Phase.ENDED):
        return end_state(code)
    if phase == Phase.WORKING and not status.scale.observed:
        return "waiting for workers"
    return _STATES.get(phase or "", "ending")


@final
class JobView:
    """Use it from the master's event loop."""

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
        self._core, self._gateway, self._queue = core, gateway, queue
        self.event_log = event_log
        self.collector = collector
        self.cluster: Cluster | None = None
        """Set once processes can be started."""
        self._reading: StatusReading | None = None
        self._read_s = 0.0

    def read_anew(self) -> None:
        """The next reading is of now."""
        self._reading = None

    def reading(self) -> StatusReading:
        """The status, at most half a second old."""
        now_s = self._queue.clock.now_s()
        if self._reading is None or now_s - self._read_s >= FRESH_S:
            found = job_status(self._core, self._gateway)
            view_age_s = self.cluster.view_age_s if self.cluster is not None else None
            wall_s = self._queue.clock.wall_s()
            self._reading = StatusReading(
                self.about, found, state_in_words(found), wall_s, view_age_s
            )
            self._read_s = now_s
        return self._reading

    def snapshot(self) -> dict[str, object]:
        """All that the page is drawn from."""
        reading = self.reading()
        record = record_of(self.event_log, reading.status)
        return snapshot(reading, record, self.collector.as_list(), self.outcome())

    def timeline(self) -> Mapping[str, Any]:
        """Bars, generations and marks."""
        return record_of(self.event_log, self.reading().status).timeline

    def outcome(self) -> Outcome | None:
        """How the job ended; None while it goes on."""
        status = self.reading().status
        if status.exit_code is None or status.phase != Phase.ENDED:
            return None
        return Outcome(status.exit_code, status.outcome or "")

    def shards(self, wish: ShardWish) -> ShardPage:
        """Some of the shards."""
        return self._core.shards(wish)

    def at_s(self) -> float:
        """The job's time."""
        return self._queue.at_s()

    def why_not_replace(self, name: ProcessName) -> str:
        """See JobState."""
        return self._core.why_not_replace(name)

    def why_not_scale(self) -> str:
        """See JobState."""
        return self._core.why_not_scale()

    def why_not_checkpoint(self) -> str:
        """See JobState."""
        return self._core.why_not_checkpoint()

    def knows(self, name: ProcessName) -> bool:
        """There is, or was, a process of that name."""
        return any(row.name == str(name) for row in self.reading().status.processes)

    async def post(self, event: Event) -> None:
        """Put an event in and return when it was handled.

        Raises Refusal: 409 when the job is over, 503 when it is not handled soon.
        """
        over = Refusal(
            409, "the job has ended", "start it again with --resume, or read what it left"
        )
        if self._core.over:
            raise over
        try:
            async with asyncio.timeout(_HANDLED_WITHIN_S):
                await asyncio.shield(self._queue.post(event))
        except TimeoutError as error:
            raise Refusal(
                503,
                f"the master did not get to it within {_HANDLED_WITHIN_S:g} s",
                "see whether it was done",
            ) from error
        except asyncio.CancelledError:
            if self._core.over:
                raise over from None
            raise
