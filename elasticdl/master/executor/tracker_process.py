"""A process that sends a job's curves or traces elsewhere, as the master sees it.

Nothing waits for it but the master's exit, and that not for long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import final

from elasticdl.formatting import exit_words
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.commands import Announce
from elasticdl.tracking.choice import Sent

_LOG = logging.getLogger(__name__)
COMMAND: tuple[str, ...] = (sys.executable, "-m", "elasticdl.tracking.main")
END_S, LEAVE_S = 30.0, 5.0
"""Limits of the process's end: after the job's end, and when another master continues the job."""
_KILL_S = 10.0


@final
class TrackerProcess:
    """At most one process. Use it from one event loop, in the process's main thread."""

    def __init__(
        self,
        directory: JobDirectory,
        what: Sent,
        envs: Mapping[str, str],
        command: Sequence[str] = COMMAND,
        end_s: float = END_S,
        leave_s: float = LEAVE_S,
    ) -> None:
        self._directory, self._what, self._envs = directory, what, envs
        self._command, self._end_s, self._leave_s = command, end_s, leave_s
        self._process: Process | None = None
        self._ending = False
        self._reading: asyncio.Task[None] | None = None

    async def start(self, announce: Callable[[Announce], None]) -> None:
        """Start the process; `announce` gets what the job's events should tell."""
        try:
            # The end of its stdin tells it that this master has gone, however it ended.
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                str(self._directory.path),
                str(self._what),
                stdin=PIPE,
                stdout=PIPE,
                env={**os.environ, **self._envs},
                # A Ctrl-C is for the master.
                start_new_session=True,
            )
        except OSError as error:
            announce(self._warning(f"cannot be started: {error}"))
            return
        self._reading = asyncio.ensure_future(self._read(process, announce))

    async def end(self, outcome: Outcome, version: int) -> None:
        """Have it send the rest and the outcome, and wait for its end for a limited time."""
        process, self._ending = self._process, True
        if process is None:
            return
        line = json.dumps({**outcome.to_json(), "version": version}) + "\n"
        try:
            code = await asyncio.wait_for(_ended(process, line.encode()), self._end_s)
        except TimeoutError:
            _LOG.warning("%s: did not take all within %g s", self._what, self._end_s)
        else:
            if code:
                _LOG.warning(
                    "%s: some of what it sends did not arrive; it is in %s",
                    self._what,
                    self._directory.path,
                )
        await self.close()

    async def close(self) -> None:
        """Have the process leave its run to the next master; kill it if it does not."""
        process, self._process, self._ending = self._process, None, True
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), self._leave_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            # The kernel may hold it in a call of a file system that is away.
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _KILL_S)
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, process: Process, announce: Callable[[Announce], None]) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                news = Announce(str(self._what), str(event["text"]), level=str(event["level"]))
                # The job's last event is its end.
                announce(news) if not self._ending else _LOG.info("%s: %s", news.level, news.text)
        code = await process.wait()
        if not self._ending and self._process is process:
            announce(self._warning(f"ended by {exit_words(code)}: see the master's log"))

    def _warning(self, text: str) -> Announce:
        return Announce(str(self._what), f"the process of the {self._what} {text}", level="warning")


async def _ended(process: Process, line: bytes) -> int:
    """Write the last line, and return the exit code."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(line)
        await process.stdin.drain()
    return await process.wait()
