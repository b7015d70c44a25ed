"""A small process that briefly outlives its owner and removes what the owner left behind.

It holds the reading end of a pipe. The owner writes `+GROUP` when it starts a process group,
`-GROUP` when that has ended, and `@PATH` when it makes a directory. The pipe closes when the owner
ends, even by SIGKILL. Then the groups that are still listed are killed, and the directory is
deleted.

It runs as a script with `python -I -S orphan_reaper.py` and imports only the standard library, so
that it starts in 10 ms.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, final

_CLOSE_S = 30.0
"""Time to delete a directory. After that the process goes on by itself."""
_DEATH_S = 2.0
"""Time for killed processes to end: until then they may still write files."""


@final
class OrphanReaper:
    """The owner's end.

    It starts with the first group or directory, and again if the process is killed.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._directory = ""
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

    def temporary_directory(self) -> str:
        """Return a new directory for the groups' files, the same at each call. Raises OSError."""
        if not self._directory:
            # Only here: the reaper itself starts sooner without it.
            from tempfile import mkdtemp

            self._directory = mkdtemp(prefix="elasticdl-")
            self._tell(f"@{self._directory}\n")
        return self._directory

    def close(self) -> None:
        """End the reaper, which kills the groups still listed, and wait for it."""
        if self._process is None:
            return
        with suppress(BrokenPipeError):
            _pipe(self._process).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_S)
        self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None:
            try:
                _pipe(self._process).write(os.fsencode(line))
                return
            except BrokenPipeError:
                # Somebody killed the reaper: collect it, then start another that knows all.
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
        known = [f"@{self._directory}\n"] if self._directory else []
        known += [f"+{group}\n" for group in sorted(self._groups)]
        for line in known:
            _pipe(self._process).write(os.fsencode(line))


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def watch(lines: Iterable[bytes]) -> None:
    """Follow the owner's lines until they end, then remove what remains."""
    groups: set[int] = set()
    directory = b""
    for line in lines:
        change, what = line[:1], line[1:].rstrip(b"\n")
        if change == b"@":
            directory = what
        elif change == b"+":
            groups.add(int(what))
        else:
            groups.discard(int(what))
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    if directory:
        _delete(directory)


def _delete(directory: bytes) -> None:
    """Delete a directory in which killed processes may still write for a moment."""
    import shutil  # Only now: its import takes as long as the start of the rest.

    deadline_s = time.monotonic() + _DEATH_S
    while True:
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory) or time.monotonic() > deadline_s:
            return
        time.sleep(0.05)


if __name__ == "__main__":
    # The end of the pipe is the only way to end it; what ends the job must not end the reaper
    # first.
    for quiet in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(quiet, signal.SIG_IGN)
    watch(iter(sys.stdin.buffer.readline, b""))
