"""The process for the platform: signals in, an exit code out, an end even if something hangs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import NoReturn, assert_never

from elasticdl.worker.process.shutdown import Done, Draining, Failed, Shutdown, exit_code

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

DRAIN_S = 4.5
"""From the request to drain until the process has ended, whatever hangs.

It is a little less than the master's grace before it kills.
"""

FAIL_S = 30.0
DONE_S = 600.0
"""Time limit of the module's `on_train_end`."""


def hold_signals() -> None:
    """Block SIGTERM and SIGINT.

    Call it before any thread starts: threads inherit it, and only `drain_on_signal` receives them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def log_to_stderr() -> None:
    """Log from level INFO on.

    Call it before TensorFlow's import, which adds a handler of its own otherwise.
    """
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def drain_on_signal(shutdown: Shutdown) -> None:
    """Start a thread that waits for signals; a long C call would delay an ordinary handler."""

    def run() -> None:
        while True:
            name = signal.Signals(signal.sigwait(_SIGNALS)).name
            _log.info("%s: finishing the step and returning leases", name)
            shutdown.end(Draining(name))

    threading.Thread(target=run, name="signals", daemon=True).start()


def end_by_force(shutdown: Shutdown, *, drain_s: float = DRAIN_S) -> None:
    """Start a thread that ends the process if it does not end in time after `shutdown`."""

    def run() -> None:
        while not shutdown.wait(timeout_s=60.0):
            continue
        limit_s = _limit_s(shutdown, drain_s)
        # This sleep is the time limit: if the process ends in time, this daemon thread ends, too.
        threading.Event().wait(limit_s)
        _log.error(
            "still running %.0f s after the reason to end (%s): ending by force",
            limit_s,
            shutdown.reason,
        )
        leave(shutdown)

    threading.Thread(target=run, name="force-exit", daemon=True).start()


def leave(shutdown: Shutdown) -> NoReturn:
    """End the process now, with the exit code of its reason to end.

    Skips Python's shutdown, in which daemon threads of TensorFlow or gRPC may crash.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Flush first: os._exit does not.
    os._exit(exit_code(shutdown.reason))


def _limit_s(shutdown: Shutdown, drain_s: float) -> float:
    match shutdown.reason:
        case Draining():
            return drain_s
        case Failed():
            return FAIL_S
        case Done() | None:
            return DONE_S
        case _:
            assert_never(shutdown.reason)
