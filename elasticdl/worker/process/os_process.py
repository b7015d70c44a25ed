"""The process for the platform: signals in, an exit code out, an end even if something hangs."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn, assert_never

from elasticdl.errors import ExitCode
from elasticdl.on_train_end import ON_TRAIN_END_S
from elasticdl.own_process import SIGNALS, end_now
from elasticdl.worker.process.shutdown import (
    Done,
    Draining,
    Failed,
    Reason,
    Shutdown,
    exit_code,
)

_log = logging.getLogger(__name__)

KILL_MARGIN_S = 0.5
"""A worker that was asked to drain ends itself so much before it would be killed.

So its log says why it did not end, and its last lines are written. How long it has:

- The master's order to drain has the grace of that stop: `END_GRACE_S` or `DRAIN_GRACE_S` of
  `master/core/processes/scaling.py`.
- SIGTERM without an order comes from Kubernetes, which preempts or evicts, or from a person. The
  worker's environment has the grace: `GRACE_S` of `cluster/kubernetes/planning.py`.

A stop sends both. Of several requests the earliest end counts.
"""

FAIL_S = 30.0
_LOOK_S = 0.5


def leave(shutdown: Shutdown) -> NoReturn:
    """End the process now, with the exit code of its reason to end."""
    end_now(exit_code(shutdown.reason))


def leave_by_force(shutdown: Shutdown) -> NoReturn:
    """End a process now that hangs while it is to end; the master learns so from its exit code."""
    end_now(forced_exit_code(shutdown))


def forced_exit_code(shutdown: Shutdown) -> ExitCode:
    """The exit code of a process that has not ended in time.

    A failure says more than that it then hung. A process that got no time did not hang.
    """
    if isinstance(shutdown.reason, Failed) or shutdown.at_once:
        return exit_code(shutdown.reason)
    return ExitCode.FORCED


def drain_on_signal(shutdown: Shutdown, grace_s: float) -> None:
    """Start a thread that waits for signals; a long C call would delay an ordinary handler.

    A process that gets one is killed after `grace_s`.
    """

    def run() -> None:
        while True:
            name = signal.Signals(signal.sigwait(SIGNALS)).name
            _log.info("%s: finishing the step and returning leases", name)
            shutdown.drain(name, grace_s)

    threading.Thread(target=run, name="signals", daemon=True).start()


def end_by_force(shutdown: Shutdown, end: Callable[[Shutdown], object] = leave_by_force) -> None:
    """Start a thread that calls `end` if the process does not end in time after `shutdown`."""

    def run() -> None:
        while not shutdown.wait(timeout_s=60.0):
            continue
        reason, begin_s = shutdown.reason, time.monotonic()
        # If the process ends in time, this daemon thread ends, too.
        while (left_s := force_at_s(reason, begin_s, shutdown.kill_at_s) - time.monotonic()) > 0:
            # The next request may leave less time.
            time.sleep(min(left_s, _LOOK_S))
            if shutdown.reason is not reason:  # A failure after that has its own time.
                reason, begin_s = shutdown.reason, time.monotonic()
        # The last line of the log is what the master shows.
        _log.error(_why_forced(shutdown, time.monotonic() - begin_s))
        end(shutdown)

    threading.Thread(target=run, name="force-exit", daemon=True).start()


def _why_forced(shutdown: Shutdown, took_s: float) -> str:
    if shutdown.in_train_end and isinstance(shutdown.reason, Done | None):
        return (
            f"on_train_end did not return within {took_s:.0f} s and was cut off; make it shorter,"
            " or do its work after the job"
        )
    return f"still running after {took_s:.0f} s ({shutdown.reason})"


def force_at_s(reason: Reason | None, begin_s: float, kill_at_s: float) -> float:
    """When a process ends by force whose reason to end came at `begin_s`.

    `kill_at_s`: when its platform kills it. All by `time.monotonic`.
    """
    match reason:
        case Draining():
            return kill_at_s - KILL_MARGIN_S
        case Failed():
            return min(begin_s + FAIL_S, kill_at_s - KILL_MARGIN_S)
        case Done() | None:
            # The job's results are complete: only the master may cut off `on_train_end` sooner.
            return begin_s + ON_TRAIN_END_S
        case _:
            assert_never(reason)
