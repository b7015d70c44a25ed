"""How a job ended, for whoever comes later: in the job's directory, and where the site keeps it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from elasticdl.cluster.kubernetes.termination_message import Ended
from elasticdl.errors import ExitCode
from elasticdl.history.diagnosis import story_lines
from elasticdl.history.event_log import EventLog
from elasticdl.jobdir.layout import JobDirectory, write_json, write_whole
from elasticdl.master.core.commands import FinishJob
from elasticdl.page import render_report

_LOG = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Results:
    """What the job came to. `status` is None if it did not begin."""

    status: Mapping[str, Any] | None = None
    receipt: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""


def leave_outcome(directory: JobDirectory, finish: FinishJob, results: Results) -> None:
    """Receipt and last status, readable when nobody is there any more.

    A disk that refuses them changes no outcome.
    """
    outcome = {"exit_code": int(finish.exit_code), "message": finish.message, "hint": finish.hint}
    try:
        if results.status is not None:
            write_json(directory.receipt, results.receipt)
        write_json(directory.status, {**outcome, "status": results.status})
        if results.status is not None:
            # A run that did not begin takes nothing of what is known of the one before.
            directory.newest.unlink(missing_ok=True)
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


def ended(directory: JobDirectory | None, finish: FinishJob, results: Results) -> Ended:
    """The same in few words."""
    status = results.status or {}
    return Ended(
        int(finish.exit_code),
        finish.message,
        finish.hint,
        dict(results.receipt.get("total") or {}),
        dict(status.get("metrics") or {}),
        status.get("loss"),
        results.output if finish.exit_code is ExitCode.DONE else "",
        str(directory.path) if directory is not None else "",
    )
