"""Local processes, each in its own session and process group, with its output in a file.

There are no orphans: parent death signal and orphan reaper end every process when ours ends. What a
process leaves in its group is killed as soon as it has ended. Temporary files are deleted when the
cluster closes. Workers may be forks of a template, which spares them their imports. The memory of a
parameter server outlives its process. Linux only (pidfd).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import final

from elasticdl.cluster.base import (
    STOPPED,
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.event_bus import EventBus, ProcessEvent
from elasticdl.cluster.local.kept_memory import KeptMemories, path_of
from elasticdl.cluster.local.machine import CUDA_VISIBLE, free_memory_bytes, least_used
from elasticdl.cluster.local.orphan_reaper import OrphanReaper
from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.cluster.local.template import Forked, Template
from elasticdl.cluster.logs.log_files import log_path, open_log, read_tail
from elasticdl.cluster.role_environment import KEPT_MEMORY

_log = logging.getLogger(__name__)

CLOSE_GRACE_S = 3.0
REAP_LIMIT_S = 30.0
"""Time between SIGKILL and the end of a process.

Only a process stuck in the kernel takes longer.
"""
WORKER_BYTES = 600 << 20
"""Memory of a worker; Python and TensorFlow need 400 MB before there is a model."""
_TRY_AGAIN_LATER = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
)


@dataclass(slots=True)
class _Child:
    """A live process; the number of its process group is its pid."""

    process: subprocess.Popen[bytes] | Forked
    pidfd: int
    log: Path
    log_begin: int
    asked: bool = False
    stopped: bool = False
    """SIGSTOP had stopped it when it was killed."""
    kill_timer: asyncio.TimerHandle | None = None
    kill_at_s: float = float("inf")


@final
class LocalCluster:
    """Starts, stops and watches processes on this machine.

    Use it from one event loop. The thread of that loop must outlive the processes, since they end
    with it.
    """

    def __init__(
        self,
        log_directory: Path,
        cores: float,
        free_bytes: Callable[[], int | None] = free_memory_bytes,
        reap_limit_s: float = REAP_LIMIT_S,
        worker_imports: Sequence[str] = (),
        gpus: Sequence[str] = (),
    ) -> None:
        """`cores` is what a job may use of this machine; no process gets more threads than that.

        Each worker sees one of `gpus`, which are names for CUDA_VISIBLE_DEVICES.

        With `worker_imports`, as MODULE or MODULE:FUNCTION, workers are forks of a process that has
        imported these modules and called these functions.
        """
        self._log_directory = log_directory
        self._cores = cores
        self._free_bytes = free_bytes
        self._reap_limit_s = reap_limit_s
        self._bus = EventBus()
        self._guard = OrphanReaper()
        self._template = Template(worker_imports, self._guard) if worker_imports else None
        self._memories = KeptMemories()
        self._gpus = tuple(gpus)
        self._gpu_of: dict[ProcessName, str] = {}
        self._children: dict[ProcessName, _Child] = {}
        self._starting: set[ProcessName] = set()
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._closed = False

    async def create(self, spec: ProcessSpec, stdin: int | None = None) -> None:
        """Start a process, unless that name was started before.

        `stdin` is a descriptor of the caller's; None: nothing. Raises CreateRefused.
        """
        if self._closed:
            raise CreateRefused("the local cluster is closed", retry=False)
        if spec.name in self._bus or spec.name in self._starting:
            return
        self._check_memory(spec.name)
        self._starting.add(spec.name)
        self._choose_gpu(spec.name)
        try:
            child = await self._start(spec, stdin)
        except OSError as error:
            reason = (
                f"cannot start {spec.name}: {error.strerror or error}:"
                f" {error.filename or spec.command[0]}"
            )
            raise CreateRefused(reason, retry=error.errno in _TRY_AGAIN_LATER) from error
        finally:
            self._starting.remove(spec.name)
        self._children[spec.name] = child
        self._all_ended.clear()
        asyncio.get_running_loop().add_reader(child.pidfd, self._ended, spec.name)
        self._bus.post(ProcessObserved(spec.name, running=True, where=f"pid {child.process.pid}"))

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        """Send SIGTERM to the process, and SIGKILL to its group after `grace_s`.

        Of several requests, the earliest end counts. If it still waits for its template, it starts
        without one, so that a second request can end it soon. `for_good` also frees the memory that
        is kept for the next process of a server.
        """
        if for_good and name.role is Role.PS:
            self._memories.free(name.index)
        if name in self._starting and self._template is not None:
            self._template.interrupt()
        child = self._children.get(name)
        if child is None:
            return
        loop = asyncio.get_running_loop()
        if not child.asked:
            child.asked = True
            if grace_s > 0:
                signal.pidfd_send_signal(child.pidfd, signal.SIGTERM)
        kill_at_s = loop.time() + grace_s
        # A later, gentler request must not extend an earlier deadline.
        if kill_at_s < child.kill_at_s:
            if child.kill_timer is not None:
                child.kill_timer.cancel()
            child.kill_at_s = kill_at_s
            child.kill_timer = (
                loop.call_later(grace_s, _kill_group, child.process.pid) if grace_s > 0 else None
            )
        if grace_s <= 0:
            child.stopped = child.stopped or _state(child.process.pid).startswith("T")
            _kill_group(child.process.pid)

    @asynccontextmanager
    async def beside(
        self, spec: ProcessSpec, standard: Sequence[int]
    ) -> AsyncIterator[subprocess.Popen[bytes] | Forked]:
        """Run a process that no observer sees, with these stdin, stdout and stderr.

        It starts as a process of that name does. At the end of the block, its group is killed.
        Raises CreateRefused, OSError.
        """
        process = await self._run(spec, standard)
        try:
            yield process
        finally:
            _kill_group(process.pid)
            self._guard.remove(process.pid)
            with suppress(subprocess.TimeoutExpired):  # It is stuck in the kernel.
                await asyncio.to_thread(process.wait, CLOSE_GRACE_S)

    def observe(self) -> AsyncGenerator[ProcessEvent]:
        """Every live process, then every ended one, then all events, until closed."""
        return self._bus.listen()

    @property
    def view_age_s(self) -> None:
        """The view is always current: the kernel notifies at once."""
        return None

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Send SIGTERM to every process, and SIGKILL after `grace_s`; returns when all have ended.

        Logs each process that outlives SIGKILL for 30 s, and leaves it behind.
        """
        self._closed = True
        if self._template is not None:
            await self._template.close()
        for name in list(self._children):
            await self.delete(name, grace_s=grace_s)
        try:
            async with asyncio.timeout(grace_s + self._reap_limit_s):
                await self._all_ended.wait()
        except TimeoutError:
            self._leave_behind()
        # It deletes files, which may take a while.
        await asyncio.to_thread(self._guard.close)
        self._memories.close()
        self._bus.close()

    def _leave_behind(self) -> None:
        """Give up processes that are stuck in the kernel: only these outlive SIGKILL.

        The job's outcome does not depend on them.
        """
        for name, child in self._children.items():
            asyncio.get_running_loop().remove_reader(child.pidfd)
            os.close(child.pidfd)
            pid = child.process.pid
            _log.warning(
                "%s (pid %d) has not ended %.0f s after SIGKILL and is left behind; its state: %s",
                name,
                pid,
                self._reap_limit_s,
                _state(pid),
            )
        self._children.clear()

    def _check_memory(self, name: ProcessName) -> None:
        """Refuse a worker that does not fit into memory, except the first.

        The kernel would kill some process otherwise. Raises CreateRefused.
        """
        if name.role is not Role.WORKER or not any(
            other.role is Role.WORKER for other in (*self._children, *self._starting)
        ):
            return
        free_bytes = self._free_bytes()
        if free_bytes is not None and free_bytes < WORKER_BYTES:
            free, wanted = free_bytes >> 20, WORKER_BYTES >> 20
            raise CreateRefused(
                f"this machine has {free} MiB of free memory, and a worker needs {wanted} MiB",
                retry=True,
            )

    async def _start(self, spec: ProcessSpec, stdin: int | None) -> _Child:
        log = log_path(self._log_directory, spec.name)
        with open_log(log, spec.name) as output, FileIO(os.devnull) as nothing:
            log_begin = output.tell()
            input_fd = nothing.fileno() if stdin is None else stdin
            standard = (input_fd, output.fileno(), output.fileno())
            process = await self._run(spec, standard)
        try:
            return _Child(process, os.pidfd_open(process.pid), log, log_begin)
        except OSError:  # No descriptor is left: end what nobody would watch.
            _kill_group(process.pid)
            self._guard.remove(process.pid)
            process.wait()
            raise

    async def _run(
        self, spec: ProcessSpec, standard: Sequence[int]
    ) -> subprocess.Popen[bytes] | Forked:
        environment = self._environment(spec)
        if self._template is not None and spec.name.role is Role.WORKER:
            forked = await self._template.fork(spec.command, environment, standard)
            if forked is not None:
                return forked
        kept = self._memories.descriptor(spec.name.index) if spec.name.role is Role.PS else None
        if kept is not None:
            environment[KEPT_MEMORY] = path_of(kept)
        return self._execute(spec.command, environment, standard, kept)

    def _execute(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        standard: Sequence[int],
        kept: int | None,
    ) -> subprocess.Popen[bytes]:
        """Start a process; it inherits the descriptor `kept`."""
        stdin, stdout, stderr = standard
        if self._closed:  # It was closed while a template imported.
            raise CreateRefused("the local cluster is closed", retry=False)
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=() if kept is None else (kept,),
        )
        self._guard.add(process.pid)
        return process

    def _environment(self, spec: ProcessSpec) -> dict[str, str]:
        threads = str(max(1, round(min(spec.cores, self._cores))))
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            **self._temporary(),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
            "ELASTICDL_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            **({CUDA_VISIBLE: self._gpu_of[spec.name]} if spec.name in self._gpu_of else {}),
            **spec.env,
            **spec.secrets,
            PARENT_PID_VARIABLE: str(os.getpid()),
        }

    def _choose_gpu(self, name: ProcessName) -> None:
        """Give a worker the GPU that the fewest live ones have."""
        live = self._children.keys() | self._starting
        self._gpu_of = {child: gpu for child, gpu in self._gpu_of.items() if child in live}
        gpu = least_used(self._gpus, self._gpu_of.values())
        if gpu is not None and name.role is Role.WORKER:
            self._gpu_of[name] = gpu

    def _temporary(self) -> dict[str, str]:
        """Have temporary files in a directory that goes with the cluster.

        AutoGraph writes a file for each function, and a killed process deletes none.
        """
        with suppress(OSError):  # The disk is full: each process sees that for itself.
            return {"TMPDIR": self._guard.temporary_directory()}
        return {}

    def _ended(self, name: ProcessName) -> None:
        """The process is a zombie now: its pid stays its own until `wait`."""
        child = self._children.pop(name)
        asyncio.get_running_loop().remove_reader(child.pidfd)
        os.close(child.pidfd)
        if child.kill_timer is not None:
            child.kill_timer.cancel()
        _kill_group(child.process.pid)
        self._guard.remove(child.process.pid)
        code = child.process.wait()
        if code == 0 and name.role is Role.PS:
            # Its master told it to end for good: nobody needs its part of the parameters any more.
            self._memories.free(name.index)
        status = ExitStatus(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            log_tail=read_tail(child.log, child.log_begin),
            asked=child.asked,
            conditions=(STOPPED,) if child.stopped else (),
        )
        self._bus.post(ProcessExited(name, status))
        if not self._children:
            self._all_ended.set()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _state(pid: int) -> str:
    """The kernel's state of a process, such as `D (disk sleep)`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError as error:
        return f"unknown ({error})"
    states = (line for line in status.splitlines() if line.startswith("State:"))
    return next(states, "State: unknown").removeprefix("State:").strip()
