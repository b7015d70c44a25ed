"""The check of model and data before a job is created."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from elasticdl.cli.views.console import tell
from elasticdl.errors import ExitCode, UserError
from elasticdl.job import JobSpec
from elasticdl.jobdir.check_file import write_progress
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.preflight import Preflight, run_preflight


def checked(spec: JobSpec, *, quiet: bool = False) -> Preflight:
    """Check model and data; blocks and says when it takes long.

    Raises UserError with the exit code for usage: nothing has been started.
    """

    def progress(text: str) -> None:
        if not quiet:
            tell(text)
        with suppress(OSError):
            write_progress(JobDirectory(Path(spec.cluster.job_dir)), text)

    if not quiet:
        tell("checking the model and the data ...")
    try:
        found = run_preflight(spec, tell=progress)
    except UserError as error:
        if error.exit_code is ExitCode.USER_ERROR:
            error.exit_code = ExitCode.USAGE
        raise
    for warning in found.raw.get("warnings") or ():
        tell(f"Warning: {warning}")
    return found
