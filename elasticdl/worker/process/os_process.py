"""This process as the platform sees it: signals in, an exit code out, and an end even if something
hangs.
"""

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
"""From being asked to go until the process is gone, whatever hangs: a little less than the master
gives before it kills.
"""

FAIL_S = 30.0
DONE_S = 600.0
"""The module's `on_train_end` runs in this time."""


def hold_signals() -> None:
    """Block SIGTERM and SIGINT.

    Call it before any thread starts: threads inherit it, and only `drain_on_signal` gets them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def drain_on_signal(shutdown: Shutdown) -> None:
    """Have a thread wait for signals: a long call into C does not delay it, as it would an ordinary
    handler.
    """

    def run() -> None:
        while True:
            name = signal.Signals(signal.sigwait(_SIGNALS)).name
            _log.info("%s: finishing the step, giving leases back", name)
            shutdown.end(Draining(name))

    threading.Thread(target=run, name="signals", daemon=True).start()


def end_by_force(shutdown: Shutdown, *, drain_s: float = DRAIN_S) -> None:
    """Have a thread end the process if it does not end by itself in time after `shutdown`."""

    def run() -> None:
        while not shutdown.wait(timeout_s=60.0):
            continue
        limit_s = _limit_s(shutdown, drain_s)
        # This sleep is the limit itself: a process that ends in time ends this daemon thread with
        # it.
        threading.Event().wait(limit_s)
        _log.error(
            "not ended %.0f s after the reason to end (%s): ending by force",
            limit_s,
            shutdown.reason,
        )
        leave(shutdown)

    threading.Thread(target=run, name="undertaker", daemon=True).start()


def leave(shutdown: Shutdown) -> NoReturn:
    """End the process now, with the exit code of its reason to end.

    Without Python's shutdown: daemon threads inside TensorFlow or gRPC would make it a gamble.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
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
