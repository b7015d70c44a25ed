"""The signals that end a local job at once, from its command and from another process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.master_address import read_master

_BETWEEN_S: Final = 0.3
"""Two signals at once count as one."""
END_S: Final = 10.0
"""Time for a master that is to end the job at once; then its supervisor kills all processes."""
SUPERVISOR_ENDS_S: Final = END_S + 5.0
"""Time for a supervisor to end its job at once; then it is killed itself."""
Send = Callable[[signal.Signals], object]
"""Sends a signal to the job's supervisor, unless that has ended."""


def wake(directory: JobDirectory, send: Send) -> None:
    """Continue a stopped (SIGSTOP) master and supervisor, so that they can end in order."""
    master = read_master(directory)
    if master is not None and master.token and master.runs(directory):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(master.pid, signal.SIGCONT)
    send(signal.SIGCONT)


def asking_to_end(send: Send) -> Iterator[float]:
    """Ask the supervisor twice, and yield the seconds to wait after each signal.

    At the second signal the master ends all processes and records how the job stood.
    """
    for _ in range(2):
        send(signal.SIGTERM)
        yield _BETWEEN_S
