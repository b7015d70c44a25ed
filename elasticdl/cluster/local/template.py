"""Start Python processes as forks of a template, which has imported what they need.

The import of TensorFlow takes most of the time of a worker's start. The template imports it once
and forks (`template_process.py`); the forked process is our own child, as if we had started it.
Where the template does not work, the caller starts an ordinary process.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.local.orphan_reaper import OrphanReaper
from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.cluster.local.process_wait import ends_within
from elasticdl.cluster.local.template_process import MOST_BYTES, ROOM_VARIABLE, Request

_log = logging.getLogger(__name__)

_OURS = "ELASTICDL_"
"""Prefix of the variables in which forked processes may differ: no library reads them."""
_ROOM = "." * (8 << 10)
_DEATH_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """How long the owner waits, in seconds, before it starts ordinary processes instead."""

    import_s: float = 120.0
    fork_s: float = 10.0
    retry_s: float = 60.0
    """Time without a template after one that failed."""


@final
@dataclass(frozen=True, slots=True)
class Forked:
    """A child of ours that the template forked, in a session and a process group of its own."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Block until the end. Return the exit code, or the negative signal, as Popen does.

        Raises subprocess.TimeoutExpired.
        """
        if timeout is not None and not ends_within(self.pid, timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@dataclass(slots=True)
class _Running:
    """A template that has been started, with the environment of its processes."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    environment: Mapping[str, str]
    ready: bool = False

    def serves(self) -> bool:
        """Whether it is ready and has not ended. Leaves a zombie: its number must stay its own."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.ready and os.waitid(os.P_PID, self.process.pid, how) is None

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, guard: OrphanReaper) -> None:
        self.kill()
        self.control.close()
        guard.remove(self.process.pid)
        with suppress(subprocess.TimeoutExpired):  # It is stuck in the kernel.
            self.process.wait(_DEATH_S)


@final
class Template:
    """Owns at most one template process. It starts with the first fork, and again if it dies.

    Use it from one event loop, whose thread outlives the processes.
    """

    def __init__(
        self,
        targets: Sequence[str],
        guard: OrphanReaper,
        limits: TemplateLimits = TemplateLimits(),
    ) -> None:
        """`targets` are what the template imports or calls: MODULE or MODULE:FUNCTION."""
        self._targets = tuple(targets)
        self._guard = guard
        self._limits = limits
        self._running: _Running | None = None
        self._fork_one_by_one = asyncio.Lock()
        self._not_before_s = 0.0
        self._closed = False

    async def fork(
        self, command: Sequence[str], environment: Mapping[str, str], standard: Sequence[int]
    ) -> Forked | None:
        """Start `python -m MODULE` or `python -c CODE` with these stdin, stdout and stderr.

        Returns None if it cannot be forked: another program or other variables than the template
        has, or a template that failed or did not answer within the limits, which is logged.
        """
        if len(command) < 3 or command[0] != sys.executable or command[1] not in ("-m", "-c"):
            return None
        own = {name: value for name, value in environment.items() if name.startswith(_OURS)}
        shared = {name: value for name, value in environment.items() if name not in own}
        request = Request(list(command[1:]), own).to_bytes()
        async with self._fork_one_by_one:
            if self._closed or time.monotonic() < self._not_before_s or len(request) > MOST_BYTES:
                return None
            try:
                running = await self._ready(shared)
                if running.environment != shared:
                    return None
                async with asyncio.timeout(self._limits.fork_s):
                    return await self._fork(running.control, request, standard)
            except (OSError, EOFError) as error:
                self._failed(error)
                return None

    def interrupt(self) -> None:
        """Kill the template if it still imports, so that no caller waits for that any longer."""
        if self._running is not None and not self._running.ready:
            self._running.kill()

    async def close(self) -> None:
        """Kill the template, and wait for a fork that is under way."""
        self._closed = True
        if self._running is not None:
            self._running.kill()
        async with self._fork_one_by_one:
            self._end()

    async def _ready(self, environment: Mapping[str, str]) -> _Running:
        if self._running is not None and self._running.serves():
            return self._running
        self._end()
        begin_s = time.monotonic()
        running = self._running = self._start(environment)
        async with asyncio.timeout(self._limits.import_s):
            if not await asyncio.get_running_loop().sock_recv(running.control, 1):
                raise EOFError("it has ended")
        running.ready = True
        _log.info(
            "imported once in %.1f s what each process needs: %s (pid %d)",
            time.monotonic() - begin_s,
            ", ".join(self._targets),
            running.process.pid,
        )
        return running

    def _start(self, environment: Mapping[str, str]) -> _Running:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        with theirs:
            try:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "elasticdl.cluster.local.template_process",
                        str(theirs.fileno()),
                        *self._targets,
                    ],
                    env={
                        **environment,
                        PARENT_PID_VARIABLE: str(os.getpid()),
                        ROOM_VARIABLE: _ROOM,
                    },
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self._guard.add(process.pid)
        return _Running(process, ours, environment)

    async def _fork(
        self, control: socket.socket, request: bytes, standard: Sequence[int]
    ) -> Forked:
        # Messages keep their bounds: a request is received at once.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            with _subreaper():
                with theirs:
                    socket.send_fds(control, [b"f"], [theirs.fileno()])
                answer = await asyncio.get_running_loop().sock_recv(ours, 32)
            if not answer:
                raise EOFError("it could not fork")
            # No `await` from here on: the process is ours, and must not be lost.
            forked = Forked(int(answer))
            self._guard.add(forked.pid)
            try:
                socket.send_fds(ours, [request], standard)
            except OSError as error:  # It was killed. Its caller will notice.
                _log.warning("pid %d ended before its program began: %s", forked.pid, error)
            return forked

    def _failed(self, error: Exception) -> None:
        self._end()
        if not self._closed:
            self._not_before_s = time.monotonic() + self._limits.retry_s
            _log.warning(
                "the process that imports %s once for all failed (%s): for %g s each process"
                " imports it itself",
                ", ".join(self._targets),
                str(error) or "it did not answer in time",
                self._limits.retry_s,
            )

    def _end(self) -> None:
        if self._running is not None:
            self._running.end(self._guard)
            self._running = None


@contextmanager
def _subreaper() -> Iterator[None]:
    """In the body, the kernel makes this process the parent of orphans among its descendants.

    Only in the body: later orphans, such as those of user code, belong to init as ever.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
