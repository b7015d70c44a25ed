"""The process for the platform: signals in, an exit code out.

It imports nothing that starts threads.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from elasticdl.errors import ElasticDLError, ExitCode, TransientError

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Block SIGTERM and SIGINT.

    Call it before any thread starts: threads inherit it, and only `leave_on_signal` receives them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def leave_on_signal() -> None:
    """Start a thread that waits for signals; a long C call would delay an ordinary handler."""

    def run() -> None:
        name = signal.Signals(signal.sigwait(_SIGNALS)).name
        _log.info("%s: leaving", name)
        leave(ExitCode.DRAINED)

    in_thread("signals", run)


def raise_file_limit() -> None:
    """Raise the limit of open files: each worker has two connections, and 1024 is too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
    if isinstance(error, ElasticDLError):
        _log.error(
            "%s: %s%s", type(error).__name__, error.message, f"; {error.hint}" if error.hint else ""
        )
        # The master was unavailable, which is no failure of this process.
        leave(ExitCode.UNAVAILABLE if isinstance(error, TransientError) else error.exit_code)
    _log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    leave(ExitCode.JOB_FAILED)


def leave(code: ExitCode) -> NoReturn:
    """End the process now.

    Pushes in progress are not acknowledged, so their workers repeat them.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
