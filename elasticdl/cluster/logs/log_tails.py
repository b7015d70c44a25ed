"""The ends of a job's logs for a report, bounded in total size, failed processes first.

A report may travel to machines without the logs.
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
    """Collects log ends up to the size limit."""

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
    """Return {"process", "text"} of the logs in a directory; skip unreadable logs."""
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
    """Return the same for a running job, for as many logs as a few seconds allow."""
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
    """Order the names: failed processes, latest failure first, then the master, then the rest."""
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
    """Return names with and without incarnation, since local logs hold all incarnations."""
    rows = [
        process
        for process in status.processes
        if process.state == "ended" and process.cause not in _QUIET
    ]
    for row in sorted(rows, key=lambda process: -process.since_s):
        yield row.name
        yield row.name.partition(".")[0]


def _entry(process: str, part: LogPart) -> dict[str, Any]:
    """Return complete lines, and a note about omitted earlier text."""
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
