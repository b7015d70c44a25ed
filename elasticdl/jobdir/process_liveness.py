"""Whether the process that a file of a job's directory names is still that one: numbers of
processes are used again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from elasticdl.jobdir.layout import JobDirectory, write_json

_MOST = 2**31


def check_file(directory: JobDirectory) -> Path:
    """Says who looks at model and data before there is a job."""
    return directory.path / "check.json"


def tell_check(directory: JobDirectory, name: str, action: str) -> None:
    """This process looks at model and data of a job to be. Raises OSError."""
    pid = os.getpid()
    write_json(
        check_file(directory), {"job_name": name, "action": action, "pid": pid, "begun": begun(pid)}
    )


def tell_progress(directory: JobDirectory, text: str) -> None:
    """What the look at model and data of this process is at, for `status`. Raises OSError."""
    told = check_of(directory)
    if told.get("pid") == os.getpid():
        write_json(check_file(directory), {**told, "progress": text})


def check_of(directory: JobDirectory) -> Mapping[str, Any]:
    """The look at model and data that goes on in a directory before there is a job: `job_name`,
    `action`, `pid`. Empty if none does.
    """
    try:
        if not check_file(directory).is_file():
            return {}
        told = json.loads(check_file(directory).read_text(encoding="utf-8"))
        pid = told["pid"]
        return told if lives(pid) and str(told.get("begun") or begun(pid)) == begun(pid) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def lives(pid: object) -> TypeGuard[int]:
    """Whether there is such a process; what is no number is none, and one that has ended is not: in
    a container nobody may collect it.
    """
    if not isinstance(pid, int) or not 0 < pid < _MOST:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _shown(pid)[:1] not in ([b"Z"], [b"X"])


def _shown(pid: int) -> list[bytes]:
    """What the system shows of a process after its name, its state first; nothing where it shows
    nothing.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def begun(pid: int) -> str:
    """When a process began, as text that no other process with its number will ever have; '' where
    the system does not show it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        ticks = _shown(pid)[19]
    except (OSError, IndexError):
        return ""
    return f"{boot} {ticks.decode()}"


def runs_master(directory: JobDirectory, pid: object) -> bool:
    """Whether that process is the master of that job: after a restart of the machine another one
    may have its number.
    """
    if not lives(pid):
        return False
    try:
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return True  # Another user's, or a system that does not show it.
    name = b"ELASTICDL_JOB_DIR="
    places = [os.fsdecode(one.removeprefix(name)) for one in told if one.startswith(name)]
    return any(os.path.realpath(place) == os.path.realpath(directory.path) for place in places)
