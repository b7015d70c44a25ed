"""What the files of a job's directory tell: events, curves and the ends of logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elasticdl.errors import PermanentError
from elasticdl.jobdir.job_end import made_wall_s
from elasticdl.jobdir.last_status import last_seen_s
from elasticdl.jobdir.layout import JobDirectory, part_of, read_json

if TYPE_CHECKING:
    from elasticdl.cli.jobs.job import Report
    from elasticdl.history.snapshot import About, Record
    from elasticdl.jobdir.outcome import Outcome


def record_of(directory: JobDirectory, outcome: Outcome | None) -> Record:
    """Return the job's record; that of a job which runs here extends to now.

    Raises PermanentError if a file cannot be read.
    """
    from elasticdl.history.snapshot import record_in

    with _readable(directory):
        record = record_in(directory.path)
        if directory.master.exists() and outcome is None and record.started_at:
            return record_in(directory.path, time.time() - record.started_at)
        return (
            record
            if outcome is None or directory.status.exists()
            else record_in(directory.path, killed=outcome.message, heard_s=last_seen_s(directory))
        )


def snapshot_of(
    directory: JobDirectory, name: str, report: Report, outcome: Outcome | None
) -> dict[str, object]:
    """Return the data of the job's page. Raises PermanentError if a file cannot be read."""
    from elasticdl.cluster.logs.log_tails import ends_in
    from elasticdl.history.snapshot import StatusReading, series_in, snapshot

    record = record_of(directory, outcome)
    about = _about(directory, name, record.started_at or made_wall_s(directory))
    # An ended job's duration must not grow with the time of the query.
    now = record.events[-1].at if outcome is not None and record.events else time.time()
    reading = StatusReading(about, report.status, report.state, now)
    with _readable(directory):
        logs = ends_in(directory.logs, report.status)
        return snapshot(reading, record, series_in(directory.path), outcome, logs)


def _about(directory: JobDirectory, name: str, started_at: float) -> About:
    from elasticdl.history.snapshot import About, installed_version

    spec = read_json(directory.spec)
    strategy = str(part_of(spec, "training").get("distribution_strategy", ""))
    return About(name, str(spec.get("action", "")), strategy, started_at, installed_version())


@contextmanager
def _readable(directory: JobDirectory) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PermanentError(f"cannot read {directory.path}: {error.strerror or error}") from error
