"""`report`: save a job's current status page as one self-contained file."""

from __future__ import annotations

from pathlib import Path

import click

from elasticdl.addresses import is_address
from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import Job, JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.param_types import LocalPath
from elasticdl.cli.views.console import put
from elasticdl.errors import PermanentError, UserError


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "--output",
    type=LocalPath(),
    metavar="FILE",
    help="Output file; `-` is stdout. [report.html of the job]",
)
def report(query: JobQuery, output: str | None) -> None:
    """Save a job's status page, as it is now, as one file that opens without a network.

    A job writes one into its directory when it ends. For a local job the default is report.html in
    the job's directory, for others JOB-report.html in the current directory. Prints
    the path of the file.
    """
    from elasticdl.page import render_report

    with resolve_job(query) as job:
        snapshot = job.snapshot()
        try:
            text = render_report(snapshot)
        except ValueError as error:
            # The snapshot of a job on a cluster is from its master, which may be older than this.
            raise PermanentError(f"cannot write a report of job {job.name}: {error}") from error
        place = output or _place(job)
    if output == "-":
        put(f"{text}\n")
        return
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write {place}: {error.strerror or error}",
            hint="name another place with --output",
        ) from error
    put(f"{place}\n")


def _place(job: Job) -> str:
    return (
        str(Path(job.place.job_dir) / "report.html")
        if job.place.job_dir and not is_address(job.place.job_dir)
        else f"{job.name}-report.html"
    )
