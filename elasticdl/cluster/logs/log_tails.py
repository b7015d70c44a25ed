"""The ends of a job's logs for a report, with a bounded total size; first failures come first.

The report may travel where the logs do not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from elasticdl.cluster.base import Cluster, LogPart, NoSuchLog
from elasticdl.cluster.logs.log_files import log_sizes, read_log
from elasticdl.errors import ElasticDLError
from elasticdl.formatting import size
from elasticdl.job_status import JobStatus

EACH_BYTES = 64 << 10
ALL_BYTES = 2 << 20
_READ_S = 5.0
_QUIET = ("finished", "drained", "fenced")
"""Causes of intended ends."""


@final
class _Ends:
    """The log ends of a report, as long as there is room."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._left_bytes = ALL_BYTES

    def take(self, process: str, part: LogPart) -> bool:
        """Add a part; False if it no longer fits."""
        self._left_bytes -= len(part.data)
        if self._left_bytes < 0:
            return False
        self.entries.append(_entry(process, part))
        return True


def ends_in(directory: Path, status: JobStatus) -> list[dict[str, Any]]:
    """{"process", "text"} of the logs in a directory; unreadable logs are skipped."""
    ends = _Ends()
    try:
        names = log_sizes(directory)
    except ElasticDLError:
        return []
    for name in _in_order(names, status):
        try:
            part = read_log(directory, name, -EACH_BYTES, EACH_BYTES)
        except (ElasticDLError, NoSuchLog):
            continue
        if not ends.take(name, part):
            break
    return ends.entries


async def ends_of(cluster: Cluster, status: JobStatus) -> list[dict[str, Any]]:
    """The same for a running job, for as many logs as can be read in a few seconds."""
    ends, until_s = _Ends(), time.monotonic() + _READ_S
    try:
        names = [log.process for log in await cluster.logs()]
    except ElasticDLError:
        return []
    for name in _in_order(names, status):
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                part = await cluster.read_log(name, -EACH_BYTES, EACH_BYTES)
        except TimeoutError:
            break
        except (ElasticDLError, NoSuchLog):
            continue
        if not ends.take(name, part):
            break
    return ends.entries


def _in_order(names: Iterable[str], status: JobStatus) -> list[str]:
    """Names of failed processes, the latest failure first, then the master's, then the rest."""
    failed = {name: place for place, name in enumerate(_failed(status))}

    def place(name: str) -> tuple[int, int, str, int, str]:
        stem, _, incarnation = name.partition(".")
        role, _, index = stem.rpartition("-")
        number = int(index) if index.isdecimal() else 0
        if name in failed or stem in failed:
            return 0, failed.get(name, failed.get(stem, 0)), role, number, incarnation
        return (1 if role == "master" else 2), 0, role, number, incarnation

    return sorted(names, key=place)


def _failed(status: JobStatus) -> Iterator[str]:
    """Names with and without incarnation: local logs have one file for all of them."""
    rows = [
        process
        for process in status.processes
        if process.state == "ended" and process.cause not in _QUIET
    ]
    for row in sorted(rows, key=lambda process: -process.since_s):
        yield row.name
        yield row.name.partition(".")[0]


def _entry(process: str, part: LogPart) -> dict[str, Any]:
    """Whole lines, and a note about what precedes them."""
    data = part.data
    if part.start > 0:
        data = data.partition(b"\n")[2] or data
    text = data.decode("utf-8", errors="replace")
    before = part.size_bytes - len(data)
    return {
        "process": process,
        "text": (
            f"… the report omits {size(before)} before this …\n{text}" if before > 0 else text
        ),
    }
