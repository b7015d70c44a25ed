"""What stays of a job when it is over: its events, time series and metrics."""

from __future__ import annotations

from collections.abc import Callable
from signal import Signals
from typing import TYPE_CHECKING, final

from elasticdl.addresses import is_address
from elasticdl.clock import SystemClock
from elasticdl.cluster.local.supervisor.messages import Predecessor
from elasticdl.errors import ExitCode
from elasticdl.formatting import spoken
from elasticdl.history.event_log import METRICS_POLICY, EventLog
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.history.lines import JsonLines
from elasticdl.job import JobSpec
from elasticdl.jobdir.last_status import last_seen_s
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.core.commands import Announce, FinishJob
from elasticdl.master.status.collector import Collector, MetricsLog
from elasticdl.master.tensorboard_scalars import ScalarRuns

if TYPE_CHECKING:
    from elasticdl.master.directory_copy import DirectoryCopy


def continue_events(directory: JobDirectory, at_s: float, newest_at: float) -> None:
    """Begin the events of a job that an earlier master's directory had, and lost.

    Its newest event was at `at_s` of the job's time, and `newest_at` of the wall clock.
    """
    log = EventLog(directory.events, SystemClock().wall_s())
    text = "the events before this one ended with the pod of an earlier master"
    log.append({"at": round(newest_at, 3), "at_s": at_s}, {"kind": "job", "text": text})
    log.close()


@final
class JobRecord:
    """The files that this master continues. Use it from one event loop."""

    def __init__(self, spec: JobSpec, directory: JobDirectory, clock: SystemClock) -> None:
        self._what = f"{spec.action} {spec.model.model_def}"
        self._job_dir = spec.cluster.job_dir
        self._copies: DirectoryCopy | None = None
        self._has_ended = False
        self.event_log = EventLog(directory.events, clock.wall_s())
        self._heard_s = max(self.event_log.last_s, last_seen_s(directory))
        """When an earlier master last gave a sign of life, in seconds of the job."""
        self.collector = Collector(directory.series, clock, directory.newest)
        self.collector.paused = True
        scalars = ScalarRuns(spec.checkpoint.tensorboard_log_dir, directory.tensorboard)
        self.metrics = MetricsLog(
            JsonLines(directory.metrics, METRICS_POLICY), self.collector, scalars
        )

    def start_copies(self, announce: Callable[[Announce], None]) -> None:
        """Start to copy the files of a job at an address; `announce` tells of errors until `ends`.

        Call it on the event loop, once the job has begun.
        """
        if is_address(self._job_dir):
            # It takes pyarrow, which a job without addresses does not need.
            from elasticdl.master.directory_copy import DirectoryCopy

            def tell(event: Announce) -> None:
                if not self._has_ended:
                    announce(event)

            self._copies = DirectoryCopy(self._job_dir, tell)
            self._copies.start()

    def away_s(self, at_s: float) -> float:
        """Return how long the job had no master, by the last sign of life of the one before."""
        return max(0.0, at_s - self._heard_s)

    def begins(self, term: int, at_s: float) -> Announce:
        """Return the event that a master of `term` starts or continues the job."""
        away_s = self.away_s(at_s)
        first = self.event_log.next_seq == 0
        since = "" if self.event_log.ended_before else " without a master"
        text = (
            f"job started: {self._what}"
            if first
            else f"resuming the job after {spoken(away_s)}{since}: {self._what}"
        )
        details = meaning(EventStep.BEGUN, term=term, away_s=0.0 if first else away_s)
        return Announce("job", text, details=details)

    def predecessor_ended(self, before: Predecessor, wall_s: float, at_s: float) -> None:
        """Record how the master before this one ended. Call it before `begins`."""
        away_s = max(0.0, wall_s - before.ended_at)
        self._heard_s = max(self._heard_s, at_s - away_s)
        status, details = before.status, dict[str, float | int | str]()
        if status.signal is not None:
            ending = f"killed by signal {status.signal} ({Signals(status.signal).name})"
            details["signal"] = status.signal
        elif status.exit_code is not None:
            ending = f"exit code {status.exit_code} without an outcome"
            details["exit_code"] = status.exit_code
        else:
            ending = status.reason
        self.event_log.append(
            {
                "at": round(wall_s - at_s + self._heard_s, 3),
                "at_s": round(self._heard_s, 3),
            },
            {
                "kind": "job",
                "text": f"the master ended after {spoken(before.lived_s)}: {ending}",
                "level": "warning",
                "details": meaning(EventStep.MASTER_ENDED, lived_s=before.lived_s, **details),
            },
        )

    def ends(self, finish: FinishJob, wall_s: float, at_s: float) -> None:
        """Record the last event: how the job ended."""
        # "job failed: …" has said why, if the job had begun.
        why = "" if finish.exit_code is ExitCode.JOB_FAILED else f": {finish.message}"
        text = f"job ended with exit code {int(finish.exit_code)}{why}"
        details = meaning(
            EventStep.ENDED,
            exit_code=int(finish.exit_code),
            message=finish.message,
            hint=finish.hint,
        )
        level = "info" if finish.exit_code in (ExitCode.DONE, ExitCode.INTERRUPTED) else "error"
        self.event_log.append(
            {"at": round(wall_s, 3), "at_s": round(at_s, 3)},
            {"kind": "job", "text": text, "level": level, "details": details},
        )
        self.event_log.close()
        self._has_ended = True

    def close(self) -> None:
        """Close the files. Waits at most 40 s for an object store."""
        self.metrics.close()
        self.event_log.close()
        if self._copies is not None:
            self._copies.close()
