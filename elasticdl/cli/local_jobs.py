"""The jobs in ./jobs."""

from __future__ import annotations

from elasticdl.cli.alive import check_of
from elasticdl.cli.directory_job import DirectoryJob
from elasticdl.cli.place import JOBS
from elasticdl.master.files import JobDirectory


def local_jobs() -> list[DirectoryJob]:
    """Those in ./jobs, by name; and those to be, whose check goes on."""
    there = {path.parent for name in ("job", "check") for path in JOBS.glob(f"*/{name}.json")}
    directories = [JobDirectory(path.resolve()) for path in sorted(there)]
    return [DirectoryJob(directory) for directory in directories if directory.spec.is_file() or check_of(directory)]


def local_names() -> list[str]:
    """What may be typed for them."""
    return [job.directory.path.name for job in local_jobs()]
