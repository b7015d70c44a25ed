"""Keeps a local job alive: starts its master, and the next one when a master was killed.

The processes of the job are this process's children, so they outlive a master. What a master needs
to continue where its predecessor ended, such as the job's token and its ports, is kept here, in
memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, final

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.machine import has_gpu, usable_cores, visible_gpus
from elasticdl.cluster.local.supervisor.channel import Channel
from elasticdl.cluster.local.supervisor.end_signals import END_S
from elasticdl.cluster.local.supervisor.job_processes import JobProcesses
from elasticdl.cluster.local.supervisor.master_restarts import Restarts, ended_on_purpose, how
from elasticdl.cluster.local.supervisor.messages import RESTART_VARIABLE, Predecessor, Welcome
from elasticdl.cluster.local.supervisor.session import Session
from elasticdl.cluster.port_reservations import PortReservations
from elasticdl.errors import ExitCode
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.jobdir.supervisor_file import SupervisorFile, write_supervisor

_LOG = logging.getLogger("elasticdl.supervisor")

_LAST_MESSAGES_S: Final = 2.0
"""A master's last messages are in the socket when it ends: time to read them."""


@final
@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended. `message` is '' if a master recorded the outcome."""

    exit_code: int
    message: str = ""


@final
class Supervisor:
    """Runs one job to its end. Use it from one event loop."""

    def __init__(
        self,
        directory: JobDirectory,
        command: Sequence[str],
        worker_imports: Sequence[str] = (),
    ) -> None:
        """`command` starts a master; `worker_imports` are those of LocalCluster."""
        self._directory = directory
        self._command = tuple(command)
        # A driver's state does not survive a fork, and the import may open a GPU.
        self._imports = () if has_gpu(os.environ) else tuple(worker_imports)
        self._cores = usable_cores()
        self._masters = LocalCluster(directory.logs, self._cores)
        self._processes = JobProcesses(self._make_cluster)
        self._ports = PortReservations()
        self._kept: dict[str, str] = {}
        self._restarts = Restarts()
        self._session: Session | None = None
        self._signals: list[signal.Signals] = []
        """Requests to stop: the first is graceful, the second ends the job at once."""
        self._asked = asyncio.Event()
        self._killed = asyncio.Event()

    async def run(self) -> int:
        """Return the job's exit code when every process has ended. Raises OSError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGQUIT, self._killed.set)
        # Only now: the file tells others where to send signals.
        write_supervisor(self._directory, SupervisorFile(os.getpid()))
        end = await self._until_killed()
        await self._close(at_once=self._killed.is_set())
        self._leave(end)
        return end.exit_code

    def _leave(self, end: JobEnd) -> None:
        """Say how the job ended if no master did."""
        if not end.message:
            self._directory.master.unlink(missing_ok=True)
            self._directory.supervisor.unlink(missing_ok=True)
            return
        _LOG.error("%s", end.message)
        left = SupervisorFile(os.getpid(), end.exit_code, end.message)
        with suppress(OSError):  # The disk is full: readers see that the job was killed.
            write_supervisor(self._directory, left)

    def _make_cluster(self) -> LocalCluster:
        return LocalCluster(
            self._directory.logs,
            self._cores,
            worker_imports=self._imports,
            gpus=visible_gpus(os.environ),
        )

    def _stop(self, number: signal.Signals) -> None:
        """Pass a request to stop on to the master, or keep it for the next one."""
        self._signals.append(number)
        self._asked.set()
        if self._session is not None:
            self._session.signal(number)
        if len(self._signals) == 2:
            # The master may stand still, or be no more.
            asyncio.get_running_loop().call_later(END_S, self._killed.set)

    async def _until_killed(self) -> JobEnd:
        masters = asyncio.ensure_future(self._run_masters())
        killed = asyncio.ensure_future(self._killed.wait())
        await asyncio.wait([masters, killed], return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if masters.done():
            return masters.result()
        masters.cancel()
        await asyncio.gather(masters, return_exceptions=True)
        return self._recorded() or JobEnd(ExitCode.INTERRUPTED, "ended at once")

    async def _close(self, *, at_once: bool) -> None:
        await self._masters.close(0.0)
        await (self._processes.kill() if at_once else self._processes.close())
        self._ports.close()

    async def _run_masters(self) -> JobEnd:
        """Run one master after the other until the job is over."""
        before: Predecessor | None = None
        number = 0
        while True:
            began_s = time.monotonic()
            try:
                status, exit_code = await self._run_master(number, before)
            except CreateRefused as refused:
                if not refused.retry:
                    return JobEnd(ExitCode.JOB_FAILED, f"no master can start: {refused.reason}")
                status, exit_code = ExitStatus(reason=refused.reason), None
            before = Predecessor(status, time.monotonic() - began_s, time.time())
            if (end := self._end(status, exit_code)) is not None:
                return end
            delay_s = self._restarts.delay_s(before.lived_s)
            if delay_s is None:
                return self._given_up(status)
            _LOG.warning(
                "the master ended by %s after %.1f s; the next one starts in %g s",
                how(status),
                before.lived_s,
                delay_s,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), delay_s)
            number += 1

    async def _run_master(
        self, number: int, before: Predecessor | None
    ) -> tuple[ExitStatus, int | None]:
        """Run one master; return how it ended, and the exit code of the job if it reported one.

        Raises CreateRefused.
        """
        await self._processes.reopen()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        name = ProcessName(Role.MASTER, 0, number)
        variables = {
            "ELASTICDL_JOB_DIR": str(self._directory.path),
            RESTART_VARIABLE: str(number),
        }
        session = Session(
            Channel(ours), self._processes, self._ports, self._kept, self._restarts.progressed
        )
        session.begin(Welcome(self._kept, before), self._signals)
        self._session = session
        serving = asyncio.ensure_future(session.serve())
        ending = asyncio.ensure_future(self._end_of(name))
        try:
            with theirs:
                spec = ProcessSpec(name, self._command, variables)
                await self._masters.create(spec, theirs.fileno())
            await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
            if serving.done() and (error := serving.exception()) is not None:
                # A bug. Nobody would answer this master any more.
                _LOG.error("ending the master: it cannot be served", exc_info=error)
                await self._masters.delete(name, grace_s=0.0)
            status = await ending
            await asyncio.wait([serving], timeout=_LAST_MESSAGES_S)
            return status, session.exit_code
        finally:
            self._session = None
            serving.cancel()
            ending.cancel()
            session.close()

    async def _end_of(self, name: ProcessName) -> ExitStatus:
        """Wait for a master. Unbounded on purpose: a job may take days."""
        async with aclosing(self._masters.observe()) as events:
            async for event in events:
                if isinstance(event, ProcessExited) and event.name == name:
                    return event.exit_status
        raise RuntimeError("the cluster of the masters was closed")

    def _end(self, status: ExitStatus, exit_code: int | None) -> JobEnd | None:
        """Return the job's end; None if another master should continue it."""
        if exit_code is not None:
            return JobEnd(exit_code)
        if (recorded := self._recorded()) is not None:
            return recorded
        if len(self._signals) > 1:
            return JobEnd(ExitCode.INTERRUPTED, "ended at once")
        if ended_on_purpose(status):
            stopped = bool(self._signals) or status.signal is not None
            code = ExitCode.INTERRUPTED if stopped else status.exit_code or ExitCode.JOB_FAILED
            return JobEnd(code, _without_outcome(status))
        return None

    def _recorded(self) -> JobEnd | None:
        """Return the end that a master has recorded before it died."""
        code = read_json(self._directory.status).get("exit_code")
        return JobEnd(code) if isinstance(code, int) else None

    def _given_up(self, status: ExitStatus) -> JobEnd:
        others = self._restarts.in_a_row - 1
        more = f", as {others} masters before it did"
        return JobEnd(ExitCode.JOB_FAILED, _without_outcome(status, more))


def _without_outcome(status: ExitStatus, more: str = "") -> str:
    tail = f"; its last lines:\n{status.log_tail}" if status.log_tail else ""
    return f"the master ended by {how(status)} without recording an outcome{more}{tail}"
