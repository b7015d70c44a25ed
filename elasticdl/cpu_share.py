"""Which share of the CPU time that a process asks for it gets: little on a machine that is too busy
or behind a CPU limit that is too low.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import final

_LEAST_S = 0.02
"""CPU time that was asked for since the last reading; less says nothing."""


@final
class CpuShare:
    """Sums up what the kernel measures for each thread. Linux only; use it from one thread."""

    def __init__(self) -> None:
        self._before = self._read()

    def take(self) -> float | None:
        """Return the share since the last call, from 0 to 1; None if it is unknown."""
        before, now = self._before, self._read()
        self._before = now
        ran = waited = 0
        for thread, (run_ns, wait_ns) in now.items():
            run_before, wait_before = before.get(thread, (0, 0))
            # The number of a thread that ended may be another's by now.
            ran += max(0, run_ns - run_before)
            waited += max(0, wait_ns - wait_before)
        asked = ran + waited
        return ran / asked if asked >= _LEAST_S * 1e9 else None

    def _read(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds on a CPU and in line for one, by thread; {} if the kernel does not say."""
        by_thread = {}
        with suppress(OSError):
            for task in Path("/proc/self/task").iterdir():
                # A thread may end while it is read.
                with suppress(OSError, ValueError):
                    run, wait, _ = (task / "schedstat").read_text(encoding="ascii").split()
                    by_thread[task.name] = (int(run), int(wait))
        return by_thread
