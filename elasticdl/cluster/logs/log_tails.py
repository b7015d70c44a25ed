"""The ends of a job's logs, for a report that goes where the logs do not: those of processes that
failed first, bounded in all.
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
"""Causes of ends that somebody wanted."""


@final
class _Ends:
    """What the report gets, as long as there is room for it."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._left_bytes = ALL_BYTES

    def take(self, process: str, part: LogPart) -> bool:
        """False if it does not fit any more."""
        self._left_bytes -= len(part.data)
        if self._left_bytes < 0:
            return False
        self.found.append(_entry(process, part))
        return True


def ends_in(directory: Path, status: JobStatus) -> list[dict[str, Any]]:
    """{"process", "text"} of the logs in a directory. What cannot be read is left out."""
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
    return ends.found


async def ends_of(cluster: Cluster, status: JobStatus) -> list[dict[str, Any]]:
    """The same of a job that runs, wherever its logs are; as many as can be read in a few
    seconds.
    """
    ends, until_s = _Ends(), time.monotonic() + _READ_S
    try:
        names = [one.process for one in await cluster.logs()]
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
    return ends.found


def _in_order(names: Iterable[str], status: JobStatus) -> list[str]:
    """Those of processes that ended unasked, the last one first; then the master's; then by name,
    as numbers count.
    """
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
    """Whole lines, and a word on what is before them."""
    data = part.data
    if part.start > 0:
        data = data.partition(b"\n")[2] or data
    text = data.decode("utf-8", errors="replace")
    before = part.size_bytes - len(data)
    return {
        "process": process,
        "text": (
            f"… {size(before)} before this are not in the report …\n{text}" if before > 0 else text
        ),
    }
