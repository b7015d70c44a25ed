"""check.json: the process that checks model and data before the job exists."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import final

from elasticdl.jobdir.layout import JobDirectory, read_json, write_json
from elasticdl.jobdir.process_liveness import began, lives


@final
@dataclass(frozen=True, slots=True)
class Check:
    """A check in progress."""

    job_name: str
    action: str
    pid: int
    began: str
    """See `process_liveness.began`."""
    progress: str = ""
    """The current activity, in words."""


def write_check(directory: JobDirectory, job_name: str, action: str) -> None:
    """Record that this process checks a new job's model and data. Raises OSError."""
    pid = os.getpid()
    write_json(directory.check, asdict(Check(job_name, action, pid, began(pid))))


def write_progress(directory: JobDirectory, text: str) -> None:
    """Record the progress of this process's check, for `status`. Raises OSError."""
    check = read_check(directory)
    if check is not None and check.pid == os.getpid():
        write_json(directory.check, asdict(replace(check, progress=text)))


def read_check(directory: JobDirectory) -> Check | None:
    """Return the check in progress; None if there is none or its process has ended."""
    found = read_json(directory.check)
    pid, since = found.get("pid"), str(found.get("began") or "")
    if not lives(pid) or (since and since != began(pid)):
        return None
    text = {key: str(found.get(key) or "") for key in ("job_name", "action", "progress")}
    return Check(pid=pid, began=since, **text)
