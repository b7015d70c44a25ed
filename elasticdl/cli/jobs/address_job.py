"""A job seen through the copy of its files at an address, from a machine that does not run it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn, final

from elasticdl.cli.jobs.directory_record import record_of, snapshot_of
from elasticdl.cli.jobs.job import Diagnosis, JobLocation, Kind, LogEntry, LogRequest, Report
from elasticdl.cli.views.console import tell
from elasticdl.cluster.logs.log_files import last_lines
from elasticdl.errors import ElasticDLError, NoSuchJob, PermanentError
from elasticdl.formatting import spoken
from elasticdl.history.lines import began_at
from elasticdl.job_status import JobStatus, unknown_status
from elasticdl.jobdir.address_copy import Index, continues, fetch, read_index
from elasticdl.jobdir.address_owner import TIMES, Owner, read_owner
from elasticdl.jobdir.job_end import job_action, job_name, killed_end, status_in
from elasticdl.jobdir.last_status import newest_status
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.supervisor_file import read_supervisor
from elasticdl.jobdir.working_directory import WorkingDirectory
from elasticdl.storage.address import below

_AGAIN_S = 5.0
_LOGS, _JOURNAL = "logs/", "journal/"


def local_directory(address: str) -> JobDirectory | None:
    """Return the directory of this machine if it has the newest files of the job at an address."""
    working = WorkingDirectory.of(address)
    if not working.job.spec.exists():
        return None
    supervisor = read_supervisor(working.job)
    if supervisor is not None and supervisor.runs(working.job):
        return working.job
    try:
        index, owner = read_index(address), read_owner(address)
    except ElasticDLError as error:
        tell(f"{error.message}; showing what this machine knows of the job")
        return working.job
    state = working.state()
    elsewhere = owner is not None and not owner.ended and owner.directory != state.id
    return working.job if continues(state, index) and not elsewhere else None


@final
class AddressJob:
    """A `Job` that can be looked at only. Its files are those of the last copy."""

    def __init__(self, address: str) -> None:
        """Read the copy. Raises NoSuchJob, UserError, TransientError, Corrupted."""
        self._address = address
        self._folder = TemporaryDirectory(prefix="elasticdl-")
        self._index: Index | None = None
        self._owner: Owner | None = None
        self._read_s = -_AGAIN_S
        self.directory = JobDirectory(Path(self._folder.name))
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        self.name = job_name(self.directory)
        self.action = job_action(self.directory)
        self.place = JobLocation(Kind.LOCAL, job_dir=address)

    def report(self) -> Report:
        self._read()
        return self._report()

    def _report(self) -> Report:
        end = self._end()
        started = began_at(self.directory.events)
        age_s = time.time() - started if started else 0.0
        if end is not None:
            outcome, status = end
            known = status or unknown_status(outcome.message)
            return Report.of(self, outcome.state, age_s, known, outcome)
        status = unknown_status("its first files are not copied yet")
        with suppress(OSError, ValueError):
            status = newest_status(self.directory)
        assert self._index is not None and self._owner is not None
        copied_s = max(0.0, time.time() - self._index.wall_s)
        message = f"runs on {self._owner.host}, copied {spoken(copied_s)} ago"
        message = f"{status.message}; {message}" if status.message else message
        return Report.of(self, "running", age_s, replace(status, message=message))

    def outcome(self) -> Outcome | None:
        self._read()
        return self._outcome()

    def _outcome(self) -> Outcome | None:
        end = self._end()
        return None if end is None else end[0]

    def stop(self, *_: object, **__: object) -> NoReturn:
        """Raise an error: only the machine that runs the job can."""
        raise self._only_there()

    end = scale = scale_servers = checkpoint = stop

    @contextmanager
    def page(self, *, read_only: bool = False) -> Iterator[str]:
        """Raise an error, as `stop`."""
        raise self._only_there()
        yield ""

    def logs(self) -> list[LogEntry]:
        return [
            LogEntry(stem, f"{size_bytes:,} bytes")
            for stem, size_bytes in self._log_sizes().items()
        ]

    def read_log(self, request: LogRequest) -> Iterator[str]:
        """See Job. A copy cannot be followed."""
        if request.follow:
            raise PermanentError(
                f"the log is a copy in {self._address}, which cannot be followed",
                hint="omit --follow, or run the command where the job runs",
            )
        there = self._log_sizes()
        stem = request.process.partition(".")[0]
        if stem not in there:
            raise NoSuchJob(
                f"job {self.name} in {self._address} has no copied log of {request.process!r}",
                hint=f"there are {', '.join(there) or 'none yet'}",
            )
        self._fetch(lambda name: name == f"{_LOGS}{stem}.log")
        yield from last_lines(self.directory.logs / f"{stem}.log", request.lines)

    def story(self) -> Diagnosis:
        record = record_of(self.directory, self.outcome())
        missing = "" if record.events else f"no events are copied to {self._address} yet"
        return Diagnosis(record.story, missing)

    def snapshot(self) -> dict[str, object]:
        self._read()
        self._fetch(lambda name: name.startswith(_LOGS))
        # Of this copy: to look for a newer one would remove the logs.
        return snapshot_of(self.directory, self.name, self._report(), self._outcome())

    def close(self) -> None:
        """Remove the temporary files."""
        self._folder.cleanup()

    def _end(self) -> tuple[Outcome, JobStatus | None] | None:
        """Return how the job ended, and its last status; None if it runs. Reads no newer copy."""
        owner = self._owner
        silent_s = time.time() - owner.wall_s if owner is not None else 0.0
        if owner is not None and not owner.ended and silent_s < 2 * TIMES.lost_s:
            return None
        document = read_json(self.directory.status)
        if (outcome := Outcome.from_json(document)) is not None:
            outcome = replace(outcome, action=outcome.action or self.action)
            return replace(outcome, job_dir=self._address), status_in(document)
        message = f"job {self.name} in {self._address} was killed with all of its processes"
        if owner is not None and not owner.ended:
            message = f"nothing was heard of job {self.name} on {owner.host} for {spoken(silent_s)}"
        outcome, status = killed_end(self.directory, message)
        hint = f"resume with: elasticdl train -f {below(self._address, 'job.yaml')} --resume"
        return replace(outcome, job_dir=self._address, hint=hint), status

    def _read(self) -> None:
        """Bring the newest copy here, without logs and journal; at most every 5 s."""
        if time.monotonic() - self._read_s < _AGAIN_S:
            return
        self._owner = read_owner(self._address)
        index = read_index(self._address)
        if index is None:
            raise NoSuchJob(f"there is no job in {self._address}")
        if self._index is None or index.id != self._index.id:
            self._index = None  # If this fails, the next look begins again.
            shutil.rmtree(self.directory.path, ignore_errors=True)
            self.directory.path.mkdir(0o700)
            self._index = fetch(
                self._address,
                index,
                self.directory.path,
                lambda name: not name.startswith((_LOGS, _JOURNAL)),
            )
        self._read_s = time.monotonic()

    def _fetch(self, wanted: Callable[[str], bool]) -> None:
        assert self._index is not None
        fetch(self._address, self._index, self.directory.path, wanted)

    def _log_sizes(self) -> dict[str, int]:
        self._read()
        assert self._index is not None
        return {
            name.removeprefix(_LOGS).removesuffix(".log"): size_bytes
            for name, size_bytes in self._index.files.items()
            if name.startswith(_LOGS) and name.endswith(".log")
        }

    def _only_there(self) -> ElasticDLError:
        if (outcome := self.outcome()) is not None:
            return NoSuchJob(f"job {self.name} in {self._address} has ended: {outcome.message}")
        assert self._owner is not None
        return PermanentError(
            f"job {self.name} in {self._address} runs on {self._owner.host}, and its files here are"
            " copies",
            hint=f"run the command on {self._owner.host}",
        )
