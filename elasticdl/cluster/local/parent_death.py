"""A process that ends when the one that started it ends, however that happened.

Called first thing in the `main` of each role. It is one of two lines: the leash also covers the
moment between the
start of a process and its being known to the guard (`guard.py`), the guard also covers
grandchildren and programs
that are not ours.
"""

from __future__ import annotations

import os
import signal
import sys

PARENT_PID_VARIABLE = "ELASTICDL_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent_pid: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, and end now if it is gone already.

    Without an argument the parent's id comes from ELASTICDL_PARENT_PID; if that is not set (in a
    pod), or off Linux,
    nothing happens. The kernel counts the *thread* that started us as the parent: it has to live as
    long as we may.

    Raises OSError if the kernel refuses.
    """
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
        # It ended before the kernel was told: nobody else would end us.
        os.kill(os.getpid(), signal.SIGKILL)
