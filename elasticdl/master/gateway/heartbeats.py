"""How often processes report to the master, and after which silence it gives them up.

Each report costs the master time, so the period grows with the number of workers. The bound on
silence follows the period that a process was given. A process whose stream of orders broke opens
another one within two seconds, so without one the bound is the shortest, whatever the period.
"""

from __future__ import annotations

from typing import Final

HEARTBEAT_S: Final = 2.0
"""The shortest period, and that of parameter servers and of workers on a ring."""
SILENT_PERIODS: Final = 5.0
"""Periods without any call after which a process is given up."""
SILENCE_S: Final = SILENT_PERIODS * HEARTBEAT_S
STARTING_SILENCE_S: Final = 60.0
"""The least while a worker starts. TensorFlow's import keeps all other threads of its process
waiting, for longer than `SILENCE_S` on a node without a free core, and its successor would fare no
better.
"""
_REPORTS_PER_S: Final = 400.0
"""Heartbeats of all workers together: beyond that the period grows."""


def heartbeat_s(processes: int) -> float:
    """The period of a worker's reports while so many processes are attached."""
    return max(HEARTBEAT_S, processes / _REPORTS_PER_S)
