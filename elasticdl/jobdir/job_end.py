"""Find out how a job ended from the files of its directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from elasticdl.errors import ExitCode, NoSuchJob
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.last_status import status_when_killed
from elasticdl.jobdir.layout import JobDirectory, part_of, read_json
from elasticdl.jobdir.master_address import read_master
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.resume_command import resume_command
from elasticdl.jobdir.supervisor_file import read_supervisor

STARTS_WITHIN_S = 60.0
"""A new job without a sign of its master for this long has no master."""
LAST_WORD_WITHIN_S = 2.0
_CHANGES_WITHIN_S = 10.0


def job_end(directory: JobDirectory) -> tuple[Outcome, JobStatus | None] | None:
    """Return the job's end, with its last status if there is one; None if it has not ended.

    A job whose supervisor was killed has ended too: its death ends all processes. Between two
    masters the job has not ended. Raises NoSuchJob.
    """
    if (supervisor := read_supervisor(directory)) is not None:
        # A master that had begun removes its address shortly before it writes its outcome.
        ends = directory.preflight.exists() and not directory.master.exists()
        if supervisor.runs(directory):
            return _end_within(directory, LAST_WORD_WITHIN_S if ends else 0.0)
        if directory.supervisor.exists():  # Else it has just ended the job in order.
            return read_end(directory) or killed_end(
                directory, supervisor.message, supervisor.exit_code
            )
    if directory.master.exists():
        master = read_master(directory)
        # An unreadable file may be new, on a file system that shows partial writes.
        goes_on = _has_just_changed(directory) if master is None else master.runs(directory)
        return None if goes_on else killed_end(directory)
    if not directory.spec.exists():
        raise NoSuchJob(
            f"the job in {directory.path} was removed",
            hint="the check of its model and data failed, or was stopped",
        )
    is_young = time.time() - made_wall_s(directory) < STARTS_WITHIN_S
    if is_young and not directory.status.exists() and not _has_receipt(directory):
        return None
    # What has just changed may still get its outcome.
    limit_s = LAST_WORD_WITHIN_S if _has_just_changed(directory) else 0.0
    return _end_within(directory, limit_s) or killed_end(directory)


def _end_within(directory: JobDirectory, limit_s: float) -> tuple[Outcome, JobStatus | None] | None:
    """Return the master's outcome as soon as it is there; None if it is not there in time."""
    end_s = time.monotonic() + limit_s
    while (end := read_end(directory)) is None and time.monotonic() < end_s:
        time.sleep(0.05)
    return end


def read_end(directory: JobDirectory) -> tuple[Outcome, JobStatus | None] | None:
    """Return the master's outcome, and its last status if readable; None if there is no outcome."""
    plain = read_json(directory.status)
    outcome = Outcome.from_json(plain)
    if outcome is None:
        return None
    outcome = replace(
        outcome,
        job_dir=str(directory.path),  # The directory may have moved.
        action=outcome.action or job_action(directory),
    )
    if outcome.exit_code == ExitCode.INTERRUPTED:
        outcome = replace(outcome, hint=resume_hint(directory))
    return outcome, status_in(plain)


def has_begun(directory: JobDirectory) -> bool:
    """Whether the last run may have begun: its preflight has passed, and no resume was refused.

    A first master that refuses a resume after the preflight (damaged checkpoint, other data, other
    strategy) says so in its outcome.
    """
    if not directory.preflight.exists():
        return False
    resumed = part_of(read_json(directory.spec), "checkpoint").get("resume")
    return not resumed or read_json(directory.status).get("begun") is not False


def status_in(left: Mapping[str, Any]) -> JobStatus | None:
    """Return the status in status.json; None if there is none of this version."""
    with suppress(ValueError):
        return JobStatus.from_json(left.get("status"))
    return None


def killed_end(
    directory: JobDirectory, message: str = "", exit_code: int | None = None
) -> tuple[Outcome, JobStatus | None]:
    """Return the outcome of a job whose master recorded none, and its last saved status."""
    name = job_name(directory)
    if not message and directory.status.exists():
        message = (
            f"cannot read how job {name} ended: {directory.status} is damaged or not readable by"
            " this user"
        )
    message = message or (f"job {name} in {directory.path} was killed with all of its processes")
    code = ExitCode.JOB_FAILED if exit_code is None else exit_code
    known = status_when_killed(directory, message.partition("\n")[0], code)
    log = "" if code == ExitCode.INTERRUPTED else f"its log is {directory.master_log}; "
    outcome = Outcome(
        code,
        message,
        str(directory.path),
        f"{log}{resume_hint(directory)}",
        receipt=known.receipt.to_json() if known and known.receipt else {},
        metrics=known.metrics if known else {},
        loss=known.loss if known else None,
        action=job_action(directory),
    )
    return outcome, known


def resume_hint(directory: JobDirectory) -> str:
    """Return the command to type next after an interruption from outside the job."""
    return resume_command(read_json(directory.spec), directory)


def job_name(directory: JobDirectory) -> str:
    """Return the name of the job, or of the directory if the job has none yet."""
    name = part_of(read_json(directory.spec), "cluster").get("job_name")
    return str(name or directory.path.name)


def job_action(directory: JobDirectory) -> str:
    """Return train, evaluate or predict; '' if unknown."""
    return str(read_json(directory.spec).get("action") or "")


def made_wall_s(directory: JobDirectory) -> float:
    """Return the unix time when the job was created; now, if it does not exist yet."""
    try:
        return directory.spec.stat().st_mtime
    except OSError:
        return time.time()


def _has_just_changed(directory: JobDirectory) -> bool:
    with suppress(OSError):
        return time.time() - directory.path.stat().st_mtime < _CHANGES_WITHIN_S
    return False


def _has_receipt(directory: JobDirectory) -> bool:
    """Return whether this run has finished; its outcome may still be missing."""
    with suppress(OSError):
        return directory.receipt.stat().st_mtime > made_wall_s(directory)
    return False
