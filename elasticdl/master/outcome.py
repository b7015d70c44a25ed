"""How a job ended, for whoever comes later: in the job's directory, and where the site keeps it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticdl.errors import ExitCode
from elasticdl.history.diagnosis import story_lines
from elasticdl.history.event_log import EventLog
from elasticdl.job_status import JobStatus, Receipt
from elasticdl.jobdir.layout import JobDirectory, write_whole
from elasticdl.jobdir.outcome import Outcome, write_outcome
from elasticdl.jobdir.resume_command import resume_command
from elasticdl.master.core.commands import FinishJob
from elasticdl.page import render_report

if TYPE_CHECKING:
    from elasticdl.job import JobSpec

_LOG = logging.getLogger(__name__)


def leave_outcome(
    directory: JobDirectory, outcome: Outcome, status: JobStatus | None = None
) -> None:
    """Receipt and last status, readable when nobody is there any more.

    `status`: None if the job did not begin. A disk that refuses them changes no outcome.
    """
    try:
        write_outcome(directory, outcome, status)
    except OSError as error:
        _LOG.error("cannot leave the outcome in %s: %s", directory.path, error)


def leave_report(directory: JobDirectory, snapshot: Callable[[], Mapping[str, Any]]) -> None:
    """report.html: the status page as it stood at the end, in one file.

    Whatever goes wrong with it changes no outcome.
    """
    try:
        write_whole(directory.report, render_report(snapshot()))
    except Exception:  # noqa: BLE001 - the job is over: an error in the page must not make a failure of it
        _LOG.exception("there is no report in %s", directory.path)


def tell_story(event_log: EventLog) -> None:
    """Into the log what `elasticdl why` can still read when the directory is gone with the pod: a
    line an entry.
    """
    for line in story_lines(event_log.story.as_dict()):
        _LOG.info("%s", line)


def with_resume_command(
    finish: FinishJob, told: Mapping[str, Any], directory: JobDirectory
) -> FinishJob:
    """The end of a job with what to do next; that of a job that is done, or was wrong from the
    start, as it is.
    """
    if finish.exit_code in (ExitCode.DONE, ExitCode.USAGE, ExitCode.DRAINED):
        return finish
    on = resume_command(told, directory)
    return replace(finish, hint=f"{finish.hint}; then {on}" if finish.hint else on)


def outcome_of(
    finish: FinishJob,
    directory: JobDirectory | None,
    spec: JobSpec | None = None,
    status: JobStatus | None = None,
    receipt: Receipt | None = None,
) -> Outcome:
    """The end of a job; only `finish` and `directory` are known of one that did not begin."""
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
