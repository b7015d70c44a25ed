"""Check that a recorded process is still the same process, since pids are reused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeGuard

_MOST = 2**31


def lives(pid: object) -> TypeGuard[int]:
    """Return whether a process with this pid runs; False if `pid` is not an integer.

    A zombie does not count as running: in a container nobody may reap it.
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


def runs_job(pid: int, directory: Path) -> bool:
    """Return whether a process runs and belongs to the job in this directory.

    After a reboot another process may have its number.
    """
    if not lives(pid):
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return True  # Another user's process, or a system that hides it.
    name, path = b"ELASTICDL_JOB_DIR=", os.path.realpath(directory)
    places = (
        os.fsdecode(variable.removeprefix(name))
        for variable in environment
        if variable.startswith(name)
    )
    return any(os.path.realpath(place) == path for place in places)


def _shown(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, state first; empty if hidden."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
