"""Finds a job on this machine, by its directory or by its name under ./jobs, and its master."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from elasticdl.cli.outcome import read_object
from elasticdl.cli.place import JOBS, has_checkpoint
from elasticdl.errors import ExitCode, PermanentError, TransientError
from elasticdl.master.files import JobDirectory
from elasticdl.rpc.master_client import MasterClient

F = TypeVar("F", bound=Callable[..., Any])
CALL_S = 5.0


def no_such_job(message: str, hint: str) -> PermanentError:
    """With the exit code for it."""
    error = PermanentError(message, hint=hint)
    error.exit_code = ExitCode.NO_SUCH_JOB
    return error


def job_argument(command: F) -> F:
    """JOB, or --job-dir: the parameters `job` and `job_dir`."""
    command = click.option("--job-dir", type=click.Path(), default="", metavar="PATH", help="The job's directory.")(command)
    return click.argument("job", required=False, default="", shell_complete=_complete)(command)


def find(job: str, job_dir: str) -> JobDirectory:
    """The directory of a job. Raises an error with exit code 4 if there is none."""
    if not job and not job_dir:
        raise click.UsageError("Name a job, or give its --job-dir.")
    places = [Path(job_dir)] if job_dir else [JOBS / job, Path(job)]
    for place in places:
        if (place / "job.json").is_file():
            return JobDirectory(place.resolve())
    raise no_such_job(f"there is no job in {' or '.join(map(str, places))}", _known())


def ended(directory: JobDirectory) -> dict[str, Any]:
    """What a job left when it ended; empty if it did not."""
    return {} if directory.master.exists() else read_object(directory.status)


@contextmanager
def master_of(directory: JobDirectory) -> Iterator[MasterClient]:
    """A connection to the job's master. Raises an error with exit code 4 if the job does not run."""
    where = read_object(directory.master)
    hint = f"see `elasticdl status --job-dir {directory.path}`"
    if not where:
        raise no_such_job(f"the job in {directory.path} does not run", hint)
    if not _lives(int(where.get("pid", 0))):
        raise no_such_job(
            f"the master of the job in {directory.path} was killed, and every process of the job with it",
            f"go on with: elasticdl train -f {directory.path / 'job.yaml'} --job-dir {directory.path} --resume"
            if has_checkpoint(directory.checkpoints)
            else f"no checkpoint was made; its log is {directory.logs / 'master-0.log'}",
        )
    client = MasterClient(where["address"], where["token"], "cli", away_s=CALL_S)
    try:
        yield client
    except TransientError as error:
        raise no_such_job(
            f"the master of the job in {directory.path} does not answer: {error.message}",
            f"it may have been killed; its log is {directory.logs / 'master-0.log'}",
        ) from error
    finally:
        client.close()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def _known() -> str:
    names = sorted(path.parent.name for path in JOBS.glob("*/job.json"))[-8:]
    return (
        f"in ./{JOBS} there are {', '.join(names)}" if names else f"jobs are looked for in ./{JOBS}; --job-dir names another place"
    )


def _complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    return [path.parent.name for path in JOBS.glob("*/job.json") if path.parent.name.startswith(begun)]
