"""Which of many processes a tick looks at: thousands take turns, so that no tick takes long.

`turn` is the number of the tick (`Tick.turn`). It is in the event, so a replay sees the same share:
ticks without a command are not in the journal, and the core cannot count them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from elasticdl.master.core.processes.table import Process

_AT_ONCE: Final = 1_000


def ticks_for_all(number: int) -> int:
    """Return in how many ticks in a row each of `number` processes has its turn: a power of two.

    A process keeps its turn when the number passes a limit, since each power divides the next one.
    """
    return 1 << (max(1, -(-number // _AT_ONCE)) - 1).bit_length()


def is_turn(number: int, turn: int) -> bool:
    """Return whether this tick compares all of `number` processes with each other."""
    return turn % ticks_for_all(number) == 0


def share_of_tick(processes: Sequence[Process], turn: int) -> Sequence[Process]:
    """Return the processes that have their turn: up to a thousand, all.

    Of more it is those whose index leaves the same remainder as `turn`, so it does not depend on
    the time or on their order.
    """
    parts = ticks_for_all(len(processes))
    if parts == 1:
        return processes
    due = turn % parts
    return [process for process in processes if process.name.index % parts == due]
