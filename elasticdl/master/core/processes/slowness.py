"""What is said of a process that is slower than the others of its job."""

from __future__ import annotations

from statistics import median

from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.processes.table import Process, Processes

_TIMES = 3.0


def lack_of_cpu(process: Process, processes: Processes) -> str:
    """Return the lack of CPU time as the end of a sentence; '' if others lack it as much.

    A process that never reported its share gets all that it asks for.
    """
    share = process.cpu_share
    others = [
        other.cpu_share for other in processes.going.values() if other.up and other is not process
    ]
    if share is None or not others:
        return ""
    usual = median(1.0 if other is None else other for other in others)
    if share * _TIMES > usual:
        return ""
    return f"; it gets {share:.0%} of the CPU time that it asks for, the others {usual:.0%}"


def announce_slowness(context: JobContext, process: Process, text: str, level: str) -> None:
    """Announce what the master finds or does about a slow process."""
    context.orders.announce(
        "straggler",
        f"{process.name} {text}",
        process=process.name,
        level=level,
        details={"slow_times": round(process.slow_times, 1)},
    )
