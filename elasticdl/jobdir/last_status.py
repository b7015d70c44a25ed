"""What is known of a job whose master was killed: its status as it was written down last, some
seconds before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from elasticdl.errors import ExitCode
from elasticdl.jobdir.layout import JobDirectory

_OF_ITS_TIME = (
    "job",
    "state",
    "strategy",
    "started_at",
    "now",
    "uptime_s",
    "eta_s",
    "cluster_view_age_s",
)
"""What an onlooker adds to a status."""
_ENDED = "ended"
"""The last phase of a job, and the last state of a process."""
_GONE = "its master was killed, and it with it"


def last_known(directory: JobDirectory, message: str) -> dict[str, Any]:
    """The status of a job that has ended like that, with `message` for the end; {} if nothing was
    written down.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        status = {
            key: value for key, value in newest_status(directory).items() if key not in _OF_ITS_TIME
        }
        receipt = {
            **status["receipt"],
            "why_left": message,
            "counted": "some seconds before its master was killed",
        }
        return {**cut_short(status, message, ExitCode.JOB_FAILED, _GONE), "receipt": receipt}
    return {}


def heard_of_s(directory: JobDirectory) -> float:
    """When a job whose master is gone last gave a sign of life beside its events, in seconds of the
    job; 0 if that is not known.
    """
    signs = [0.0]
    with suppress(OSError, ValueError, KeyError, TypeError):
        signs.append(float(newest_status(directory)["at_s"]))
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        signs += [float(row["at_s"]) for row in last_measured(directory)]
    return max((sign for sign in signs if isfinite(sign)), default=0.0)


def cut_short(status: Mapping[str, Any], message: str, exit_code: int, gone: str) -> dict[str, Any]:
    """A status out of the midst of a job, of one that has ended so: nothing of it moves.

    `gone`: what became of its processes.
    """
    over = {
        "phase": _ENDED,
        "message": message,
        "outcome": message,
        "exit_code": int(exit_code),
    }
    still = {
        "gauges": {},
        "waiting": [],
        "records_per_s": 0.0,
        "records": {**status["records"], "records_per_s": 0.0},
    }
    return {
        **status,
        **over,
        **still,
        "processes": [_ended(row, gone) for row in status["processes"]],
    }


def newest_status(directory: JobDirectory) -> dict[str, Any]:
    """What newest.json has. Raises OSError, ValueError, KeyError, TypeError."""
    found: dict[str, Any] = json.loads(directory.newest.read_text(encoding="utf-8"))["status"]
    return found


def last_measured(directory: JobDirectory) -> list[Mapping[str, Any]]:
    """The last row of metrics.jsonl, if there is any."""
    from elasticdl.history.lines import read_lines  # not for every `--help`

    return [line.row for line in read_lines(directory.metrics)[-1:]]


def _ended(row: dict[str, Any], gone: str) -> dict[str, Any]:
    return row if row["state"] == _ENDED else {**row, "state": _ENDED, "shard": "", "message": gone}
