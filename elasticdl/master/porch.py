"""The status page while the master still looks at its model and data: it is up from the very start.

In a thread, for the main one waits for the check. The master's own page takes its place; browsers find that by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from elasticdl.clock import SystemClock
from elasticdl.history.chronicle import Chronicle
from elasticdl.history.snapshot import about
from elasticdl.job import JobSpec
from elasticdl.master.core.events import StopRequested
from elasticdl.master.core.state import JobState
from elasticdl.master.fencing import Fences
from elasticdl.master.front_desk import FrontDesk
from elasticdl.master.inbox import Inbox
from elasticdl.master.server_roster import ServerRoster
from elasticdl.master.site import Environment
from elasticdl.master.status.collector import Collector
from elasticdl.master.status.guard import Guard
from elasticdl.master.status.server import StatusServer
from elasticdl.master.status.watched import Watched
from elasticdl.master.way_on import way_on
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.shard import Task

_LOG = logging.getLogger(__name__)
_NO_MASTER = 0
"""The epoch of a page without a master: no browser goes on from its frames."""
_CLOSE_S = 10.0


@final
class Porch:
    """A job that has not begun, and who asks after it."""

    def __init__(self, environment: Environment, spec: JobSpec, stop: Callable[[str], None]) -> None:
        """`stop`: what a person who wants the job to end is answered with; called in the thread."""
        self._environment, self._spec, self._stop = environment, spec, stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page of a job that is checked", daemon=True)

    def open(self) -> None:
        """Begin to listen, soon."""
        self._thread.start()

    def close(self) -> None:
        """Free the port."""
        self._over.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001 - the top of a thread: an error in the page must not reach the job
            _LOG.exception("there is no status page while the job is being checked")

    async def _serve(self) -> None:
        clock, place = SystemClock(), self._environment.page
        chronicle = Chronicle(self._environment.directory.events, clock.wall_s())
        inbox, core = Inbox(clock, chronicle.began_s), JobState(self._spec)
        on = way_on(self._spec.model_dump(mode="json"), self._environment.directory)
        what = about(self._spec, chronicle.started_at, place.namespace, on)
        watched = Watched(what, core, self._desk(inbox), inbox, chronicle, Collector(None, clock))
        server = StatusServer(watched, Guard(self._environment.token, place.names), _NO_MASTER)
        answering = asyncio.ensure_future(self._answer(inbox))
        try:
            await server.start(place.host, place.port or self._spec.cluster.status_port)
            await asyncio.to_thread(self._over.wait)
        except OSError as error:
            _LOG.warning("there is no status page while the job is being checked: %s", error.strerror or error)
        finally:
            answering.cancel()
            await server.close(None)
            chronicle.close()

    def _desk(self, inbox: Inbox) -> FrontDesk:
        """Nobody comes to it."""
        credentials = Credentials(self._environment.token, "master")
        roster = ServerRoster(0, lambda name, address: GrpcServerControl(str(name), address, credentials, _NO_MASTER))
        return FrontDesk(inbox, roster, Fences(roster), Task.TRAINING, lambda _: False)

    async def _answer(self, inbox: Inbox) -> None:
        """Of all that may be asked of a job, one that has not begun can only be stopped."""
        while True:
            for entry in await inbox.take():
                if isinstance(entry.event, StopRequested):
                    self._stop(entry.event.reason)
                entry.handled.set_result(None)


@contextmanager
def porch(environment: Environment, spec: JobSpec, stop: Callable[[str], None]) -> Iterator[None]:
    """The page is there for as long as the context lasts."""
    page = Porch(environment, spec, stop)
    page.open()
    try:
        yield
    finally:
        page.close()
