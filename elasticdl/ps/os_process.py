"""The process for the platform: signals in, an exit code out.

It imports nothing that starts threads.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from elasticdl.errors import ElasticDLError, ExitCode, TransientError
from elasticdl.own_process import SIGNALS, end_now, log_error

_log = logging.getLogger(__name__)

_farewells: list[Callable[[], None]] = []
FAREWELL_LIMIT_S = 40.0
"""Time limit in seconds. A pod's grace period is a minute (`cluster/kubernetes/planning.py`)."""


def before_leaving(work: Callable[[], None]) -> None:
    """Run `work` when a signal tells this process to leave, for `FAREWELL_LIMIT_S` at most."""
    _farewells.append(work)


def leave_on_signal() -> None:
    """Start a thread that waits for signals; a long C call would delay an ordinary handler.

    A second signal ends the process at once.
    """

    def run() -> None:
        name = signal.Signals(signal.sigwait(SIGNALS)).name
        _log.info("%s: leaving", name)
        working = [threading.Thread(target=work, daemon=True) for work in _farewells]
        for thread in working:
            thread.start()
        until_s = time.monotonic() + FAREWELL_LIMIT_S
        while any(thread.is_alive() for thread in working) and time.monotonic() < until_s:
            if signal.sigtimedwait(SIGNALS, 0.05) is not None:
                break
        leave(ExitCode.DRAINED)

    in_thread("signals", run)


def in_thread(name: str, work: Callable[[], None]) -> None:
    """Run `work` in a thread of its own; its failure ends the process visibly."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the process visibly
            fail(error)

    threading.Thread(target=run, name=name, daemon=True).start()


def fail(error: Exception) -> NoReturn:
    """Log the error and end the process."""
    log_error(_log, error)
    if not isinstance(error, ElasticDLError):
        leave(ExitCode.JOB_FAILED)
    # The master was unavailable, which is no failure of this process.
    leave(ExitCode.UNAVAILABLE if isinstance(error, TransientError) else error.exit_code)


def leave(code: ExitCode) -> NoReturn:
    """End the process now.

    Pushes in progress are not acknowledged, so their workers repeat them.
    """
    # Threads of gRPC and of the server may be in the middle of a call.
    end_now(code)
