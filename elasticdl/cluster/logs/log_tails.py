"""The ends of a job's logs for a report, bounded in total size, failed processes first.

A report may travel to machines without the logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from elasticdl.cluster.logs.log_files import LogPart, NoSuchLog, log_sizes, read_log
from elasticdl.errors import ElasticDLError
from elasticdl.formatting import size
from elasticdl.job_status import JobStatus

EACH_BYTES = 64 << 10
ALL_BYTES = 2 << 20
_QUIET = ("finished", "drained", "fenced")
"""Causes of intended ends."""


def ends_in(directory: Path, status: JobStatus) -> list[dict[str, Any]]:
    """Return {"process", "text"} of the logs in a directory; skip unreadable logs."""
    entries: list[dict[str, Any]] = []
    left_bytes = ALL_BYTES
    try:
        names = log_sizes(directory)
    except ElasticDLError:
        return []
    for name in _in_order(names, status):
        try:
            part = read_log(directory, name, -EACH_BYTES, EACH_BYTES)
        except (ElasticDLError, NoSuchLog):
            continue
        left_bytes -= len(part.data)
        if left_bytes < 0:
            break
        entries.append(_entry(name, part))
    return entries


def _in_order(names: Iterable[str], status: JobStatus) -> list[str]:
    """Order the names: failed processes, latest failure first, then the master, then the rest."""
    failed = {name: rank for rank, name in enumerate(dict.fromkeys(_failed(status)))}

    def rank(name: str) -> tuple[int, int, str, int]:
        role, _, index = name.rpartition("-")
        number = int(index) if index.isdecimal() else 0
        if name in failed:
            return 0, failed[name], role, number
        return (1 if role == "master" else 2), 0, role, number

    return sorted(names, key=rank)


def _failed(status: JobStatus) -> Iterator[str]:
    """Return names without incarnation, since a log has all incarnations."""
    rows = [
        process
        for process in status.processes
        if process.state == "ended" and process.cause not in _QUIET
    ]
    for row in sorted(rows, key=lambda process: -process.since_s):
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
