"""The thread that talks to the master about what was done, so that no other has to wait for it.

It goes on with heartbeats while a step or the user's code hangs; a master that is away is the
client's business, and
when that gives up the same report is tried again: the master counts a report once, by its number.
"""

from __future__ import annotations

import threading
from typing import Protocol, final

from elasticdl.errors import Refused, TransientError
from elasticdl.rpc.conversation import Report
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.state_reports import StateReports
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.shutdown import Shutdown

GIVE_UP_ATTEMPTS = 5
"""Each takes as long as the client tries by itself (two minutes).

A master that is away altogether ends the worker sooner: the stream
of orders is not waited for any longer than that.
"""


class Listener(Protocol):
    """Who takes the reports: the master's client."""

    def report(self, report: Report) -> None:
        """Raises Refused, TransientError."""


@final
class Reporter:
    """Sends the outbox at least every `heartbeat_s`, and at once when it says that it is urgent."""

    def __init__(
        self,
        outbox: Outbox,
        gauges: Gauges,
        master: Listener,
        heartbeat_s: float,
        shutdown: Shutdown,
        states: StateReports | None = None,
    ) -> None:
        """`states` adds what this worker is at; None adds nothing."""
        self._outbox = outbox
        self._gauges = gauges
        self._master = master
        self._heartbeat_s = heartbeat_s
        self._shutdown = shutdown
        self._states = states
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Send what is left and end; blocks at most `timeout_s`.

        True if all of it got to the master.
        """
        self._closing.set()
        self._outbox.urgent.set()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                if not self._closing.is_set():
                    # `flush` may have come while a report was made, which clears `urgent`.
                    self._outbox.urgent.wait(self._heartbeat_s)
                # Read before taking: what was put in before `flush` was called is in this report,
                # then.
                last = self._closing.is_set()
                self._send(self._report())
                self._outbox.arrived()
                if last:
                    return
        except Refused as error:
            # Whoever gave its leases back is fenced by that: nothing more was to be said.
            if not self._closing.is_set():
                self._shutdown.fail(error)
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._shutdown.fail(error)

    def _report(self) -> Report:
        if self._states is None:
            return self._outbox.take(self._gauges.take())
        state = self._states.prepare()
        return self._states.complete(self._outbox.take(self._gauges.take()), state)

    def _send(self, report: Report) -> None:
        for attempt in range(GIVE_UP_ATTEMPTS):
            try:
                return self._master.report(report)
            except TransientError as error:
                if attempt + 1 == GIVE_UP_ATTEMPTS or self._closing.is_set():
                    raise
                self._closing.wait(error.retry_after_s)
