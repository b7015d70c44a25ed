"""The local jobs in ./jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.jobdir.layout import JOBS, JobDirectory


def _nobody(_path: Path) -> None:
    """Ignore the message."""


def local_jobs(closed: Callable[[Path], None] = _nobody) -> list[DirectoryJob]:
    """Return the jobs in ./jobs by name.

    Calls `closed` for each directory without permission. Raises OSError if ./jobs is unreadable.
    """
    jobs = []
    for path in _entries():
        directory = JobDirectory(path.resolve())
        try:
            if directory.spec.is_file():
                jobs.append(DirectoryJob(directory))
        except PermissionError:
            closed(path)
    return jobs


def _entries() -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [JOBS / name for name in sorted(os.listdir(JOBS)) if not name.startswith(".")]
    return []


def local_names() -> list[str]:
    """Return the names that users may type. Raises OSError as `local_jobs` does."""
    return [job.directory.path.name for job in local_jobs()]
