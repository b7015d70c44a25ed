"""check.json: who checks the model and the data, before there is a job."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import final

from elasticdl.jobdir.layout import JobDirectory, read_json, write_json
from elasticdl.jobdir.process_liveness import began, lives


@final
@dataclass(frozen=True, slots=True)
class Check:
    """A check that goes on."""

    job_name: str
    action: str
    pid: int
    began: str
    """See `process_liveness.began`."""
    progress: str = ""
    """What it is at, in words."""


def write_check(directory: JobDirectory, job_name: str, action: str) -> None:
    """This process checks the model and the data of a job to be. Raises OSError."""
    pid = os.getpid()
    write_json(directory.check, asdict(Check(job_name, action, pid, began(pid))))


def write_progress(directory: JobDirectory, text: str) -> None:
    """What the check of this process is at, for `status`. Raises OSError."""
    check = read_check(directory)
    if check is not None and check.pid == os.getpid():
        write_json(directory.check, asdict(replace(check, progress=text)))


def read_check(directory: JobDirectory) -> Check | None:
    """The check that goes on; None if there is none, or if its process has ended."""
    found = read_json(directory.check)
    pid, since = found.get("pid"), str(found.get("began") or "")
    if not lives(pid) or (since and since != began(pid)):
        return None
    text = {key: str(found.get(key) or "") for key in ("job_name", "action", "progress")}
    return Check(pid=pid, began=since, **text)
