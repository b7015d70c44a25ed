"""A supervisor as its starter sees it: the command line, or a thread of a Python program."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.cluster.local.supervisor.end_signals import SUPERVISOR_ENDS_S, asking_to_end, wake
from elasticdl.cluster.local.supervisor.process_end import end_of
from elasticdl.cluster.logs.log_files import log_path
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.private_file import make_private, private

MASTER: Final = ProcessName(Role.MASTER, 0)
_DEATH_S: Final = 5.0
"""Time for a supervisor to kill all processes of a job."""


@final
class SupervisorProcess:
    """A running supervisor. It ends with the thread that started it.

    Use it from the event loop of that thread.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: JobDirectory) -> None:
        self._process, self._directory = process, directory
        self._ended = asyncio.ensure_future(end_of(process.pid))

    @classmethod
    def start(
        cls, directory: JobDirectory, command: Sequence[str], worker_imports: Sequence[str]
    ) -> Self:
        """Start the supervisor of the job in a directory; `command` starts a master.

        Raises OSError.
        """
        make_private(directory.logs)
        log = log_path(directory.logs, MASTER)
        ours = {
            "ELASTICDL_JOB_DIR": str(directory.path),
            PARENT_PID_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
        }
        # What it says belongs between the logs of its masters.
        with open(log, "ab", buffering=0, opener=private) as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "elasticdl.cluster.local.supervisor",
                    ",".join(worker_imports),
                    *command,
                ],
                env={**os.environ, **ours},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, directory)

    async def wait(self) -> int:
        """Return its exit code, or the negative signal, as Popen does.

        Unbounded on purpose: a job may take days.
        """
        await asyncio.shield(self._ended)
        return self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Have it stop the job gracefully; after `grace_s`, kill all processes."""
        self._signal(signal.SIGTERM)
        await asyncio.wait([self._ended], timeout=grace_s)
        await self.close()

    async def end(self) -> None:
        """Have the master end the job at once and record how it stood; kill all that is left."""
        wake(self._directory, self._signal)
        # Twice: the request to stop before this may not have been a signal.
        for pause_s in asking_to_end(self._signal):
            await asyncio.wait([self._ended], timeout=pause_s)
        await asyncio.wait([self._ended], timeout=SUPERVISOR_ENDS_S)
        await self.close()

    async def close(self) -> None:
        """Kill all processes of the job, and wait for their ends."""
        if not self._ended.done():
            self._signal(signal.SIGQUIT)
            await asyncio.wait([self._ended], timeout=_DEATH_S)
        if not self._ended.done():
            # It stands still. The orphan reapers kill what it leaves.
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._ended], timeout=_DEATH_S)
        if self._ended.done():
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
