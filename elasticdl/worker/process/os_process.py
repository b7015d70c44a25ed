"""The process for the platform: signals in, an exit code out, an end even if something hangs."""

from __future__ import annotations

import logging
import signal
import threading
from typing import NoReturn, assert_never

from elasticdl.own_process import SIGNALS, end_now
from elasticdl.worker.process.shutdown import Done, Draining, Failed, Shutdown, exit_code

_log = logging.getLogger(__name__)

DRAIN_S = 4.5
"""From the request to drain until the process has ended, whatever hangs.

The cluster kills a stopped process after a grace, which depends on who stops it:

- the master, because the job is over: `END_GRACE_S` (5 s) of `master/core/processes/scaling.py`;
- the master, to scale down, to replace or to stop: `DRAIN_GRACE_S` (30 s) there;
- Kubernetes, to preempt or evict: `GRACE_S` (30 s) of `cluster/kubernetes/planning.py`.

A second stop, a lost process and a cluster that closes leave less time, or none: nobody waits for
what the worker would return. A worker does not know its grace, so this is a little less than the
shortest of the list.
"""

FAIL_S = 30.0
DONE_S = 600.0
"""Time limit of the module's `on_train_end`."""


def drain_on_signal(shutdown: Shutdown) -> None:
    """Start a thread that waits for signals; a long C call would delay an ordinary handler."""

    def run() -> None:
        while True:
            name = signal.Signals(signal.sigwait(SIGNALS)).name
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
    """End the process now, with the exit code of its reason to end."""
    end_now(exit_code(shutdown.reason))


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
