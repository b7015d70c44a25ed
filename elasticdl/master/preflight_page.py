"""The status page while the master still looks at its model and data: it is up from the very start.

In a thread, for the main one waits for the check. The master's own page takes its place; browsers
find that by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import final

from elasticdl.clock import SystemClock
from elasticdl.history.event_log import EventLog
from elasticdl.history.snapshot import about
from elasticdl.job import JobSpec
from elasticdl.jobdir.resume_command import resume_command
from elasticdl.master.core.commands import Announce
from elasticdl.master.core.events import StopRequested
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.platform.platform import MasterEnvironment
from elasticdl.master.status.access import AccessGuard
from elasticdl.master.status.collector import Collector
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.server import StatusServer
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.shard import Task

_LOG = logging.getLogger(__name__)
_NO_MASTER = 0
"""The epoch of a page without a master: no browser goes on from its frames."""
_CLOSE_S = 10.0


@final
class PreflightPage:
    """A job that has not begun, and who asks after it."""

    def __init__(
        self, environment: MasterEnvironment, spec: JobSpec, stop: Callable[[str], None]
    ) -> None:
        """`stop`: what a person who wants the job to end is answered with; called in the thread."""
        self._environment, self._spec, self._stop = environment, spec, stop
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said: Callable[[str], None] | None = None
        self._thread = threading.Thread(
            target=self._run, name="page of a job that is checked", daemon=True
        )

    def open(self) -> None:
        """Begin to listen, soon."""
        self._thread.start()

    def tell(self, text: str) -> None:
        """Announce what takes long in the check. From any thread; lost if the page is not up."""
        loop, said = self._loop, self._said
        if loop is not None and said is not None:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(said, text)

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
        event_log = EventLog(self._environment.directory.events, clock.wall_s())
        queue, core = EventQueue(clock, event_log.began_s), JobState(self._spec)
        on = resume_command(self._spec.model_dump(mode="json"), self._environment.directory)
        what = about(self._spec, event_log.started_at, place.namespace, on)
        watched = JobView(
            what, core, self._gateway(queue), queue, event_log, Collector(None, clock)
        )
        server = StatusServer(
            watched, AccessGuard(self._environment.token, place.names), _NO_MASTER
        )

        def said(text: str) -> None:
            stamp = {"at": round(clock.wall_s(), 3), "at_s": round(queue.at_s(), 3)}
            event_log.append(stamp, asdict(Announce("job", text)))

        self._loop, self._said = asyncio.get_running_loop(), said
        answering = asyncio.ensure_future(self._answer(queue))
        try:
            await server.start(place.host, place.port or self._spec.cluster.status_port)
            await asyncio.to_thread(self._over.wait)
        except OSError as error:
            _LOG.warning(
                "there is no status page while the job is being checked: %s",
                error.strerror or error,
            )
        finally:
            self._loop = self._said = None
            answering.cancel()
            await server.close(None)
            event_log.close()

    def _gateway(self, queue: EventQueue) -> ProcessGateway:
        """Nobody comes to it."""
        credentials = Credentials(self._environment.token, "master")
        registry = PsRegistry(
            0, lambda name, address: GrpcServerControl(str(name), address, credentials, _NO_MASTER)
        )
        return ProcessGateway(queue, registry, Fences(registry), Task.TRAINING, lambda _: False)

    async def _answer(self, queue: EventQueue) -> None:
        """Of all that may be asked of a job, one that has not begun can only be stopped."""
        while True:
            for entry in await queue.take():
                if isinstance(entry.event, StopRequested):
                    self._stop(entry.event.reason)
                entry.handled.set_result(None)


@contextmanager
def preflight_page(
    environment: MasterEnvironment, spec: JobSpec, stop: Callable[[str], None]
) -> Iterator[PreflightPage]:
    """The page is there for as long as the context lasts."""
    page = PreflightPage(environment, spec, stop)
    page.open()
    try:
        yield page
    finally:
        page.close()
