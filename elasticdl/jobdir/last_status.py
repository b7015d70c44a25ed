"""Recover the last saved status of a job whose master was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any

from elasticdl.errors import ExitCode
from elasticdl.formatting import duration
from elasticdl.job_status import JobStatus, ProcessStatus
from elasticdl.jobdir.layout import JobDirectory

_ENDED = "ended"
"""The last phase of a job, and the last state of a process."""
_STOPPING = "stopping"
_GONE = "killed with its master"


def status_when_killed(
    directory: JobDirectory, message: str, exit_code: int = ExitCode.JOB_FAILED
) -> JobStatus | None:
    """Return the last saved status of a killed job; None if there is none.

    `message` describes the end, which has this exit code.
    """
    with suppress(OSError, ValueError):
        status = cut_short(newest_status(directory), message, exit_code, _GONE)
        counted = (
            f"at {duration(status.at_s)} of the job, some seconds before its master was killed"
        )
        receipt = status.receipt and replace(status.receipt, why_left=message, counted=counted)
        return replace(status, receipt=receipt)
    return None


def last_seen_s(directory: JobDirectory) -> float:
    """Return when a killed job last wrote its status or metrics, in job seconds; 0 if unknown."""
    signs = [0.0]
    with suppress(OSError, ValueError):
        signs.append(newest_status(directory).at_s)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        signs += [float(row["at_s"]) for row in last_measured(directory)]
    return max((sign for sign in signs if isfinite(sign)), default=0.0)


def cut_short(status: JobStatus, message: str, exit_code: int, gone: str) -> JobStatus:
    """Return a running job's status as that of an ended job.

    `gone` says what happened to its processes.
    """
    return replace(
        status,
        phase=_ENDED,
        message=message,
        outcome=message,
        exit_code=int(exit_code),
        gauges={},
        states={},
        waiting=(),
        records_per_s=0.0,
        processes=tuple(_ended(process, gone) for process in status.processes),
    )


def newest_status(directory: JobDirectory) -> JobStatus:
    """Return the status in newest.json. Raises OSError, ValueError."""
    written = json.loads(directory.newest.read_text(encoding="utf-8"))
    return JobStatus.from_json(written.get("status") if isinstance(written, dict) else None)


def last_measured(directory: JobDirectory) -> list[Mapping[str, Any]]:
    """Return the last row of metrics.jsonl, if any."""
    from elasticdl.history.lines import read_lines  # slow import: not for every `--help`

    return [line.row for line in read_lines(directory.metrics)[-1:]]


def _ended(process: ProcessStatus, gone: str) -> ProcessStatus:
    if process.state == _ENDED:
        return process
    why = f" ({process.message})" if process.state == _STOPPING and process.message else ""
    return replace(process, state=_ENDED, shard=None, message=f"{gone}{why}")
