"""Save how a job ended: in its directory, and where the platform keeps it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticdl.errors import ExitCode
from elasticdl.history.diagnosis_text import story_lines
from elasticdl.history.event_log import EventLog
from elasticdl.job_status import JobStatus, Receipt
from elasticdl.jobdir.layout import JobDirectory, write_atomically
from elasticdl.jobdir.outcome import Outcome, write_outcome
from elasticdl.jobdir.resume_command import resume_command
from elasticdl.master.core.commands import FinishJob
from elasticdl.page import render_report

if TYPE_CHECKING:
    from elasticdl.job import JobSpec

_LOG = logging.getLogger(__name__)


def leave_outcome(
    directory: JobDirectory,
    outcome: Outcome,
    status: JobStatus | None = None,
    *,
    begun: bool = True,
) -> None:
    """Save receipt and last status for readers after the job: see `write_outcome`.

    A disk error does not change the outcome.
    """
    try:
        write_outcome(directory, outcome, status, begun=begun)
    except OSError as error:
        _LOG.error("cannot write the outcome to %s: %s", directory.path, error)


def leave_report(directory: JobDirectory, snapshot: Callable[[], Mapping[str, Any]]) -> None:
    """Write report.html: the final status page in one file.

    An error does not change the outcome.
    """
    try:
        write_atomically(directory.report, render_report(snapshot()))
    except Exception:  # noqa: BLE001 - the job is over: an error in the page must not make a failure of it
        _LOG.exception("cannot write the report to %s", directory.path)


def tell_story(event_log: EventLog) -> None:
    """Log the story, a line per entry, for `elasticdl why` after the pod's directory is gone."""
    for line in story_lines(event_log.story.as_dict()):
        _LOG.info("%s", line)


def with_resume_command(
    finish: FinishJob, job_json: Mapping[str, Any], directory: JobDirectory
) -> FinishJob:
    """Add the next step to a job's end, unless the job is done or was invalid from the start."""
    if finish.exit_code in (ExitCode.DONE, ExitCode.USAGE, ExitCode.DRAINED):
        return finish
    on = resume_command(job_json, directory)
    hint = finish.hint or ("fix the cause" if finish.exit_code is ExitCode.JOB_FAILED else "")
    return replace(finish, hint=f"{hint}; then {on}" if hint else on)


def outcome_of(
    finish: FinishJob,
    directory: JobDirectory | None,
    spec: JobSpec | None = None,
    status: JobStatus | None = None,
    receipt: Receipt | None = None,
) -> Outcome:
    """Return a job's end; without a status if the job did not begin."""
    return Outcome(
        int(finish.exit_code),
        finish.message,
        str(directory.path) if directory is not None else "",
        finish.hint,
        receipt.to_json() if receipt else {},
        status.metrics if status else {},
        status.loss if status else None,
        spec.checkpoint.output if spec is not None and finish.exit_code is ExitCode.DONE else "",
        str(spec.action) if spec is not None else "",
    )
