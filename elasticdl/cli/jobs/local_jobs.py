"""The jobs in ./jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.jobdir.check_file import read_check
from elasticdl.jobdir.layout import JOBS, JobDirectory


def _nobody(_path: Path) -> None:
    """Nobody is told."""


def local_jobs(closed: Callable[[Path], None] = _nobody) -> list[DirectoryJob]:
    """Those in ./jobs, by name; and those to be, whose check goes on.

    `closed` hears of directories that this user may not look into. Raises OSError if that is so of
    ./jobs.
    """
    found = []
    for path in _entries():
        directory = JobDirectory(path.resolve())
        try:
            if directory.spec.is_file() or read_check(directory):
                found.append(DirectoryJob(directory))
        except PermissionError:
            closed(path)
    return found


def _entries() -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [JOBS / name for name in sorted(os.listdir(JOBS)) if not name.startswith(".")]
    return []


def local_names() -> list[str]:
    """What may be typed for them. Raises OSError as `local_jobs` does."""
    return [job.directory.path.name for job in local_jobs()]
