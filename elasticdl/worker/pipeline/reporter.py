"""The thread that reports to the master, so that no other thread waits for it.

It sends heartbeats even while a step or user code hangs. The client handles an unreachable master;
when the client gives up, the same report is sent again, and the master counts it once, by its
number.
"""

from __future__ import annotations

import threading
from typing import Protocol, final

from elasticdl.errors import Refused, TransientError
from elasticdl.rpc.conversation import LeaseAnswer, Report
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.state_reports import StateReports
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.shutdown import Shutdown

GIVE_UP_ATTEMPTS = 5
"""Each attempt takes as long as the client's own retries (two minutes).

If the master is gone altogether, the worker ends sooner: the stream of orders waits no longer than
that.
"""


class Listener(Protocol):
    """Receives the reports: the master's client."""

    def report(self, report: Report) -> float | None:
        """Send a report; return after how many seconds the next one is due, None: as before.

        Raises Refused, TransientError.
        """

    def report_and_request(self, report: Report) -> tuple[float | None, LeaseAnswer | None]:
        """Do the same, and ask for a lease; None: ask again. Raises Refused, TransientError."""


@final
class Reporter:
    """Sends the outbox at least every `heartbeat_s`, and at once when it is urgent.

    The master may change the period with each report.
    """

    def __init__(
        self,
        outbox: Outbox,
        gauges: Gauges,
        master: Listener,
        heartbeat_s: float,
        shutdown: Shutdown,
        states: StateReports | None = None,
    ) -> None:
        """`states` adds this worker's current activity; None adds nothing."""
        self._outbox = outbox
        self._gauges = gauges
        self._master = master
        self._heartbeat_s = heartbeat_s
        self._shutdown = shutdown
        self._states = states
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Send what is left and end; blocks at most `timeout_s`.

        True if the master received all of it.
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
                # Read this before taking, so that the report has everything from before `flush`.
                last = self._closing.is_set()
                # The same report object is sent again until it arrives; what was taken is never
                # lost.
                self._heartbeat_s = self._send(self._report(), last=last) or self._heartbeat_s
                # Only after the master's answer.
                self._outbox.arrived()
                if last:
                    return
        except Refused as error:
            # The master fences a worker that has returned its leases; nothing more was to report.
            if not self._closing.is_set():
                self._shutdown.fail(error)
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._shutdown.fail(error)

    def _report(self) -> Report:
        if self._states is None:
            return self._outbox.take(self._gauges.take())
        state = self._states.prepare()
        return self._states.complete(self._outbox.take(self._gauges.take()), state)

    def _send(self, report: Report, *, last: bool) -> float | None:
        carried = self._outbox.carried
        asks = not last and carried.take()
        for attempt in range(GIVE_UP_ATTEMPTS):
            try:
                if not asks:
                    return self._master.report(report)
                heartbeat_s, answer = self._master.report_and_request(report)
                carried.answered(answer)
                return heartbeat_s
            except TransientError as error:
                if attempt + 1 == GIVE_UP_ATTEMPTS or self._closing.is_set():
                    raise
                self._closing.wait(error.retry_after_s)
        raise AssertionError("the last attempt returns or raises")
