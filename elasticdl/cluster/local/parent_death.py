"""Make a process end when its parent ends, however that happens.

It is called first in the `main` of each role. The orphan reaper (`orphan_reaper.py`) complements
it: this signal covers the moment between the start of a process and its registration there, while
the reaper also covers grandchildren and foreign programs.
"""

from __future__ import annotations

import os
import signal
import sys

PARENT_PID_VARIABLE = "ELASTICDL_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent_pid: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, or end now if the parent is gone.

    Without an argument the parent's id comes from ELASTICDL_PARENT_PID. If that is not set (in a
    pod), or off Linux, nothing happens. The kernel regards the *thread* that started this process
    as the parent, so that thread must live as long.

    Raises OSError if the kernel refuses.
    """
    # Remove it: this process's own children have another parent.
    text = os.environ.pop(PARENT_PID_VARIABLE, "")
    expected = expected_parent_pid if expected_parent_pid is not None else int(text or 0)
    if not expected or not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != expected:
        # The parent ended before the prctl call, so no signal will come.
        os.kill(os.getpid(), signal.SIGKILL)
