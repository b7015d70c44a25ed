"""Writes an image of the state in a child process, which has the state as it was at its start.

A large image takes a second, in which the master would answer nobody. The child shares its memory
until one of the two changes it.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Final, NoReturn, final

from elasticdl.cluster.local.parent_death import die_with_parent

_LONGEST_S: Final = 60.0
"""A child that takes longer is killed."""
_STOP_S: Final = 1.0
_POLL_S: Final = 0.005
_FIRST_FILE: Final = 3
_NICE: Final = 5
"""The master's own work comes first."""


@final
class ImageProcess:
    """A child of this process that does one thing, and ends."""

    def __init__(self, work: Callable[[], object], now_s: float) -> None:
        """Begin. Raises OSError if the system allows no more processes."""
        self.begun_s = now_s
        self.cpu_s = 0.0
        """CPU time that it took; 0 before its end."""
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run(work, parent)

    def succeeded(self, now_s: float) -> bool | None:
        """Return whether it has done its work; None: it has not ended yet."""
        if (succeeded := self._result()) is None and now_s - self.begun_s > _LONGEST_S:
            # One that waits for a file server ends only after that, so do not wait for its end.
            os.kill(self._pid, signal.SIGKILL)
        return succeeded

    def stop(self) -> None:
        """Kill it, and wait for its end for a second at most."""
        end_s = time.monotonic() + _STOP_S
        while self._result() is None and time.monotonic() < end_s:
            os.kill(self._pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def _result(self) -> bool | None:
        try:
            pid, status, used = os.wait4(self._pid, os.WNOHANG)
        except ChildProcessError:
            # Something else in this process took its status, so nobody knows what it has done.
            return False
        self.cpu_s = used.ru_utime + used.ru_stime
        return status == 0 if pid else None


def _run(work: Callable[[], object], parent: int) -> NoReturn:
    """Do the work, and end without anything that the parent does at its end.

    No other thread of the parent is here, so nothing may wait for one: `work` computes and writes
    files. The parent's connections must end with it, so this process keeps none of them.
    """
    status = 1
    try:
        gc.disable()  # It would change, and so copy, the memory that both share.
        os.closerange(_FIRST_FILE, os.sysconf("SC_OPEN_MAX"))
        die_with_parent(parent)
        os.nice(_NICE)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        work()
        status = 0
    except Exception:  # noqa: BLE001 - the top of a process
        traceback.print_exc()
    finally:
        os._exit(status)
