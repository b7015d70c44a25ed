"""A local job, seen through its directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, final

from elasticdl.checkpoint.layout import has_checkpoint
from elasticdl.cli.jobs.directory_record import record_of, snapshot_of
from elasticdl.cli.jobs.job import (
    Diagnosis,
    JobLocation,
    Kind,
    LogEntry,
    LogRequest,
    Report,
    asked_to_stop,
)
from elasticdl.cluster.local.supervisor.end_signals import SUPERVISOR_ENDS_S, asking_to_end, wake
from elasticdl.cluster.logs.log_files import LogFollower, last_lines, log_files, log_sizes
from elasticdl.errors import Corrupted, ElasticDLError, NoSuchJob, PermanentError, TransientError
from elasticdl.history.lines import began_at
from elasticdl.job_choices import Action
from elasticdl.job_status import CheckpointStatus, JobStatus, unknown_status
from elasticdl.jobdir.job_end import job_action, job_end, job_name, made_wall_s
from elasticdl.jobdir.last_status import newest_status
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.jobdir.master_address import MasterAddress, read_master
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.supervisor_file import SupervisorFile, read_supervisor
from elasticdl.tokens import viewer_token

if TYPE_CHECKING:
    from elasticdl.rpc.master_client import MasterClient

CALL_S = 5.0
_LOOK_EVERY_S = 0.25
RESTART_S = 15.0
"""Time limit for a master that restarts, of requests that only a master can fulfil."""


class MasterRestarts(TransientError):
    """The job's master ended, and the next one does not listen yet."""


@final
class DirectoryJob:
    """A local `Job`."""

    def __init__(self, directory: JobDirectory) -> None:
        self.directory = directory
        self.name = job_name(directory)
        self.action = job_action(directory)
        self.place = JobLocation(Kind.LOCAL, job_dir=str(directory.path))

    def report(self) -> Report:
        end = job_end(self.directory)
        if end is not None:
            outcome, known = end
            status = known or unknown_status(outcome.message)
            # It was killed, or was done before it was resumed and took none.
            lacks_one = not self.directory.status.exists() or not status.checkpoints
            if lacks_one and has_checkpoint(self.directory.checkpoints):
                status = self._with_newest_checkpoint(status)
            return self._report(outcome.state, status, outcome)
        if not self.directory.master.exists():
            status = unknown_status("its master is starting")
            return self._report("waiting", replace(status, waiting=("master-0 is starting",)))
        try:
            status = self.status()
        except MasterRestarts as error:
            return self._report("running", self._newest(error.message))
        except TransientError as error:
            return self._report("running", unknown_status(error.message))
        except PermanentError as error:
            return self._report("running", unknown_status(f"{error.message}; {error.hint}"))
        return self._report("running", status)

    def _with_newest_checkpoint(self, status: JobStatus) -> JobStatus:
        """Add the newest complete checkpoint, which the last saved status may lack."""
        from elasticdl.checkpoint.directories import complete_ones, read_manifest  # slow imports

        known = max((checkpoint.version for checkpoint in status.checkpoints), default=-1)
        for path in complete_ones(self.directory.checkpoints)[:1]:
            with suppress(Corrupted, OSError):
                manifest = read_manifest(path)
                if manifest.version > known:
                    # Version and counts of the status stay those of one moment.
                    newest = CheckpointStatus(
                        manifest.version,
                        str(path),
                        manifest.bytes,
                        max(status.at_s, path.stat().st_mtime - self._began_at()),
                    )
                    return replace(status, checkpoints=(*status.checkpoints, newest))
        return status

    def _began_at(self) -> float:
        return began_at(self.directory.events) or made_wall_s(self.directory)

    def _newest(self, message: str) -> JobStatus:
        """Return the saved status of a job whose master restarts."""
        status = unknown_status(message)
        with suppress(OSError, ValueError):
            status = replace(newest_status(self.directory), message=message)
        return replace(status, gauges={}, records_per_s=0.0, waiting=("master-0 is restarting",))

    def status(self) -> JobStatus:
        """Return the master's status. Raises ElasticDLError; MasterRestarts at once."""
        with self._master(restart_s=0.0) as master:
            return master.status()

    def outcome(self) -> Outcome | None:
        end = job_end(self.directory)
        return None if end is None else end[0]

    def stop(self, reason: str) -> str:
        with self._master(RESTART_S) as master:
            return asked_to_stop(master, reason)

    def end(self, reason: str) -> str:
        """See Job.

        A second signal makes the master end everything. The supervisor kills a master that hangs,
        and is killed itself if it stands still.
        """
        supervisor = self._supervisor()
        send = partial(self._signal, supervisor)
        wake(self.directory, send)
        with suppress(ElasticDLError), self._master(restart_s=0.0) as master:
            master.stop(reason)  # only so that it can record who ended it
        for pause_s in asking_to_end(send):
            time.sleep(pause_s)
        end_s = time.monotonic() + SUPERVISOR_ENDS_S
        while supervisor.runs(self.directory):
            if time.monotonic() > end_s:
                self._signal(supervisor, signal.SIGKILL)
                return (
                    f"its supervisor did not end within {SUPERVISOR_ENDS_S:g} s and was killed, and"
                    " every process of the job with it"
                )
            time.sleep(_LOOK_EVERY_S)
        return f"ended at once{self._kept()}"

    def _kept(self) -> str:
        """Say what a resume continues from; '' for a job that does not train."""
        from elasticdl.checkpoint.directories import complete_ones  # slow import

        if self.action != Action.TRAIN:
            return ""
        for newest in complete_ones(self.directory.checkpoints):
            return f"; its newest checkpoint is {newest.name}"
        return "; it has no checkpoint"

    def _supervisor(self) -> SupervisorFile:
        """Return the job's supervisor. Raises an error with exit code 4 if it does not run."""
        supervisor = read_supervisor(self.directory)
        if supervisor is None or not supervisor.runs(self.directory):
            self._where()  # It says more: the job runs on a cluster, or how it ended.
            raise self._not_running()
        return supervisor

    def _signal(self, supervisor: SupervisorFile, number: signal.Signals) -> None:
        """Send a signal to the job's supervisor, unless it has ended."""
        try:
            if supervisor.runs(self.directory):
                os.kill(supervisor.pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise PermanentError(
                f"this user may not end job {self.name} (pid {supervisor.pid})",
                hint="only the user who started the job, or root, can end it",
            ) from error

    def scale(self, low: int, high: int) -> str:
        with self._master() as master:
            return master.scale(low, high)

    def scale_servers(self, number: int) -> None:
        with self._master() as master:
            master.scale_servers(number)

    def checkpoint(self) -> None:
        with self._master() as master:
            master.checkpoint()

    def logs(self) -> list[LogEntry]:
        sizes = log_sizes(self.directory.logs)
        return [LogEntry(name, f"{size:,} bytes") for name, size in sizes.items()]

    def read_log(self, request: LogRequest) -> Iterator[str]:
        """See Job.

        Names are looked up in the list of logs and never joined into a path. One log has all
        incarnations.
        """
        there = log_files(self.directory.logs)
        stem = request.process.partition(".")[0]
        if stem not in there:
            names = ", ".join(there) or "none yet"
            raise NoSuchJob(
                f"job {self.name} in {self.place} has no log of {request.process!r}",
                hint=f"there are {names}",
            )
        follower = LogFollower(there[stem], from_end=True)
        yield from last_lines(there[stem], request.lines)
        if request.follow:
            yield from self._follow(follower)

    @contextmanager
    def page(self, *, read_only: bool = False) -> Iterator[str]:
        master = self._where()
        if not master.page:
            raise PermanentError(
                f"job {self.name} in {self.place} has no status page",
                hint="its log may say why: " + str(self.directory.master_log),
            )
        token = viewer_token(master.token) if read_only else master.token
        yield f"{master.page}#token={token}"

    def story(self) -> Diagnosis:
        record = record_of(self.directory, self.outcome())
        missing = "" if record.events else f"there is nothing in {self.directory.events} yet"
        return Diagnosis(record.story, missing)

    def snapshot(self) -> dict[str, object]:
        return snapshot_of(self.directory, self.name, self.report(), self.outcome())

    def close(self) -> None:
        """See Job."""

    def _follow(self, follower: LogFollower) -> Iterator[str]:
        while True:
            # Before the read: lines written between a read and the check would be lost.
            running = self.directory.master.exists() and self.outcome() is None
            content = follower.read()
            if content:
                yield content.decode("utf-8", errors="replace")
            elif not running:
                return
            else:
                # A pipe buffers: the reader must see all lines before a wait.
                sys.stdout.flush()
                time.sleep(_LOOK_EVERY_S)

    def _report(self, state: str, status: JobStatus, outcome: Outcome | None = None) -> Report:
        report = Report.of(self, state, time.time() - self._began_at(), status, outcome)
        master = read_master(self.directory) if outcome is None else None
        if master is None or not master.token or not master.runs(self.directory):
            return report
        return replace(report, master=f"pid {master.pid}")

    def _where(self, restart_s: float = RESTART_S) -> MasterAddress:
        """Return the address of the job's master; wait `restart_s` for one that restarts.

        Raises an error with exit code 4 if the job does not run, MasterRestarts.
        """
        end_s = time.monotonic() + restart_s
        while True:
            master = read_master(self.directory)
            if master is None:
                raise self._not_running()
            # A job directory on a volume: its master runs in a pod and keeps the token in a Secret.
            if not master.token:
                claim = read_json(self.directory.kubernetes)
                name, namespace = claim.get("job", self.name), claim.get("namespace", "NAMESPACE")
                raise NoSuchJob(
                    f"job {self.name} in {self.place} runs on a cluster",
                    hint=f"run `elasticdl status {name} --namespace {namespace}`",
                )
            if master.runs(self.directory):
                return master
            if (outcome := self.outcome()) is not None:
                raise NoSuchJob(outcome.message, hint=outcome.hint)
            if time.monotonic() > end_s:
                raise MasterRestarts(
                    "its master is restarting",
                    hint=f"try again in some seconds; its log is {self.directory.master_log}",
                )
            time.sleep(_LOOK_EVERY_S)

    def _not_running(self) -> NoSuchJob:
        """Return the error for a job without a master."""
        report = self.directory.report
        hint = f"see `elasticdl status {self.name}`" + (
            f"; report.html is in its directory, {report.parent}" if report.exists() else ""
        )
        starts = self.outcome() is None
        state = "has no master yet" if starts else "has ended"
        return NoSuchJob(
            f"job {self.name} in {self.place} {state}",
            hint="try again in a moment" if starts else hint,
        )

    @contextmanager
    def _master(self, restart_s: float = RESTART_S) -> Iterator[MasterClient]:
        """Connect to the job's master.

        Raises an error with exit code 4 if the job does not run, TransientError if the master does
        not answer or restarts.
        """
        from elasticdl.rpc.master_client import MasterClient  # slow import (gRPC): not for `--help`

        where = self._where(restart_s)
        client = MasterClient(
            where.address, where.token, "cli", away_s=CALL_S, authority=where.authority or None
        )
        try:
            yield client
        except TransientError as error:
            self._where(0.0)  # raises the right error if the job or its master has ended meanwhile
            message = (
                f"the master of job {self.name} in {self.place} does not answer: {error.message}"
            )
            hint = (
                f"it may be busy or stalled; its log is {self.directory.master_log};"
                f" `elasticdl stop {self.name} --now` ends it in any case"
            )
            raise TransientError(message, hint=hint) from error
        finally:
            client.close()
