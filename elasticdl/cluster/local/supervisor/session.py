"""Serves one master: carries out its requests, and sends what becomes of its processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import final

from elasticdl.cluster.base import CreateRefused, ExitStatus, ProcessName, ProcessSpec
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.supervisor.channel import Channel, Received
from elasticdl.cluster.local.supervisor.job_processes import JobProcesses
from elasticdl.cluster.local.supervisor.messages import (
    Message,
    Welcome,
    error_plain,
    event_plain,
    spec_of,
    status_plain,
)
from elasticdl.cluster.local.supervisor.process_end import end_of
from elasticdl.cluster.port_reservations import PortReservations

_LOG = logging.getLogger(__name__)


@final
class Session:
    """One master's connection. Processes outlive it, except those that run beside the job."""

    def __init__(
        self,
        channel: Channel,
        processes: JobProcesses,
        ports: PortReservations,
        kept: dict[str, str],
        progressed: Callable[[int], None],
    ) -> None:
        """`kept` gets what the master keeps for the next one; `progressed` the job's records."""
        self._channel = channel
        self._processes = processes
        self._ports = ports
        self._kept = kept
        self._progressed = progressed
        self._besides: dict[int, _Beside] = {}
        self._observing: asyncio.Task[None] | None = None
        self.exit_code: int | None = None
        """The job's, once the master has recorded its outcome."""

    def begin(self, welcome: Welcome, signals: Iterable[int]) -> None:
        """Send what waits for the master."""
        self._channel.send(welcome.to_plain())
        for number in signals:
            self.signal(number)

    async def serve(self) -> None:
        """Serve the master until it closes its end, which its own end does, too."""
        while (received := await self._channel.receive()) is not None:
            self._take(received)

    def signal(self, number: int) -> None:
        """Have the master handle a signal as soon as it can; it would die of one at its start."""
        self._channel.send({"signal": number})

    def close(self) -> None:
        """Close the connection, once the master has ended.

        A process that is being created stays: the next master learns of it. Nobody waits for a
        check any more.
        """
        for beside in self._besides.values():
            beside.release()
        if self._observing is not None:
            self._observing.cancel()
        self._channel.close()

    def _take(self, received: Received) -> None:
        match received.message:
            case {"id": int(), "do": str()}:
                self._processes.spawn(self._answer(received))
            case {"observe": True}:
                self._observing = asyncio.ensure_future(self._observe())
            case {"keep": dict(values)}:
                self._kept.update(values)
            case {"progress": int(records)}:
                self._progressed(records)
            case {"finished": int(exit_code)}:
                self.exit_code = exit_code
            case unknown:
                _LOG.error("the master sent a message of unknown kind: %s", list(unknown))

    async def _answer(self, received: Received) -> None:
        message, number = received.message, received.message["id"]
        try:
            answer = await self._carry_out(number, message, received.descriptors)
        except Exception as error:  # noqa: BLE001 - the master raises it where it asked
            answer = error_plain(error)
            if "failed" in answer:
                _LOG.exception("the request %s of the master failed", message["do"])
        finally:
            for descriptor in received.descriptors:
                os.close(descriptor)
        self._channel.send({"id": number, **answer})

    async def _carry_out(self, number: int, message: Message, standard: Sequence[int]) -> Message:
        match message:
            case {"do": "create", "spec": spec}:
                await self._processes.cluster.create(spec_of(spec))
            case {"do": "delete", "name": name, "grace_s": grace_s, "for_good": for_good}:
                await self._processes.cluster.delete(
                    ProcessName.parse(name), grace_s=grace_s, for_good=for_good
                )
            case {"do": "beside", "spec": spec}:
                return await self._beside(number, spec_of(spec), standard)
            case {"do": "release", "of": int(other)}:
                await self._release(other)
            case {"do": "clear"}:
                await self._processes.clear()
            case {"do": "close"}:
                await self._processes.close()
                if self._observing is not None:
                    await self._observing  # The master hears of every end before the answer.
            case {"do": "reserve", "key": key, "host": host, "port": port}:
                return {"port": self._ports.reserve(key, host, port)}
            case _:
                raise ValueError(f"unknown request: {message['do']}")
        return {}

    async def _observe(self) -> None:
        async with aclosing(self._processes.cluster.observe()) as events:
            async for event in events:
                self._channel.send({"event": event_plain(event)})

    async def _beside(self, number: int, spec: ProcessSpec, standard: Sequence[int]) -> Message:
        """Start a process that runs until the master releases it or ends."""
        beside = _Beside(number, self._channel)
        self._besides[number] = beside
        beside.begin(self._processes.cluster, spec, standard)
        return {"pid": await beside.started}

    async def _release(self, number: int) -> None:
        beside = self._besides.pop(number, None)
        if beside is not None:
            beside.release()
            await beside.over.wait()


@final
class _Beside:
    """A process that no observer sees: the check of model and data."""

    def __init__(self, number: int, channel: Channel) -> None:
        self._number, self._channel = number, channel
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self._released = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, cluster: LocalCluster, spec: ProcessSpec, standard: Sequence[int]) -> None:
        """Start it; `started` gets its number, or the error."""
        self._task = asyncio.ensure_future(self._run(cluster, spec, standard))

    def release(self) -> None:
        """End it, or its start: that may wait long for the template. `over` is set then."""
        self._released.set()
        if self._task is not None and not self.started.done():
            self._task.cancel()

    async def _run(self, cluster: LocalCluster, spec: ProcessSpec, standard: Sequence[int]) -> None:
        try:
            async with cluster.beside(spec, standard) as process:
                self.started.set_result(process.pid)
                telling = asyncio.ensure_future(self._tell_end(process.pid))
                await self._released.wait()
                telling.cancel()
        except (CreateRefused, OSError) as error:
            if self.started.done():
                raise
            self.started.set_exception(error)
        finally:
            if not self.started.done():
                refused = CreateRefused("it was released before it started", retry=False)
                self.started.set_exception(refused)
            self.over.set()

    async def _tell_end(self, pid: int) -> None:
        await end_of(pid)
        self._channel.send({"ended": self._number, "status": status_plain(_status_of(pid))})


def _status_of(pid: int) -> ExitStatus:
    """Return how a child has ended. It stays a zombie: its number stays its own until released."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if end is None:
        return ExitStatus(reason="Unknown")
    exited = end.si_code == os.CLD_EXITED
    return ExitStatus(
        exit_code=end.si_status if exited else None, signal=None if exited else end.si_status
    )
