"""`report`: save a job's current status page as one self-contained file."""

from __future__ import annotations

from pathlib import Path

import click

from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import Job, JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.errors import UserError


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "--output",
    type=click.Path(),
    default="",
    metavar="FILE",
    help="Output file; `-` is stdout. [report.html of the job]",
)
def report(query: JobQuery, output: str) -> None:
    """Save a job's status page, as it is now, as one file that opens without a network.

    A job writes one into its directory when it ends. For a local job the default is report.html in
    the job's directory, for a job on a cluster JOB-report.html in the current directory. Prints
    the path of the file.
    """
    from elasticdl.page import render_report

    with resolve_job(query) as job:
        text = render_report(job.snapshot())
        place = output or _place(job)
    if output == "-":
        click.echo(text)
        return
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write {place}: {error.strerror or error}",
            hint="name another place with --output",
        ) from error
    click.echo(place)


def _place(job: Job) -> str:
    return (
        str(Path(job.place.job_dir) / "report.html")
        if job.place.job_dir
        else f"{job.name}-report.html"
    )
