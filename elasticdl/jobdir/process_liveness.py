"""Whether the process that a file of a job's directory names is still that one: numbers of
processes are used again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeGuard

_MOST = 2**31


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


def began(pid: int) -> str:
    """When a process began, as text that no other process with its number will ever have; '' where
    the system does not show it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        ticks = _shown(pid)[19]
    except (OSError, IndexError):
        return ""
    return f"{boot} {ticks.decode()}"
