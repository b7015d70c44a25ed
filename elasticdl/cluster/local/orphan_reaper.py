"""A small process that briefly outlives its owner and kills what the owner left behind.

It holds the reading end of a pipe. The owner writes `+GROUP` when it starts a process group and
`-GROUP` when that has ended. The pipe closes when the owner ends, even by SIGKILL, and the groups
that are still listed are killed.

It runs as a script with `python -I -S orphan_reaper.py` and imports only the standard library, so
that it starts in 10 ms.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, final


@final
class OrphanReaper:
    """The owner's end. It starts with the first group, and again if the process is killed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        """Kill this process group if the owner ends before `remove`."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """The group has ended.

        Call it before the leader is reaped: after that, its number may belong to another process.
        """
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the reaper, which kills the groups still listed, and wait for it."""
        if self._process is None:
            return
        with suppress(BrokenPipeError):
            _pipe(self._process).close()
        self._process.wait(timeout=10)
        self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None:
            try:
                _pipe(self._process).write(line.encode())
                return
            except BrokenPipeError:
                # Somebody killed the reaper: collect it, then start another with all groups.
                self.close()
        # In its own session, so that Ctrl-C and the end of the terminal do not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd="/",
            env={},
        )
        for group in sorted(self._groups):
            _pipe(self._process).write(f"+{group}\n".encode())


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def watch(lines: Iterable[bytes]) -> None:
    """Follow the owner's lines until they end, then kill the remaining groups."""
    groups: set[int] = set()
    for line in lines:
        change, group = line[:1], int(line[1:])
        if change == b"+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    # The end of the pipe is the only way to end it; what ends the job must not end the reaper
    # first.
    for quiet in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(quiet, signal.SIG_IGN)
    watch(iter(sys.stdin.buffer.readline, b""))
