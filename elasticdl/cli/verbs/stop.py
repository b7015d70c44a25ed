"""`stop`: end a job gracefully, or at once."""

from __future__ import annotations

import sys

import click

from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.views.console import plain, tell
from elasticdl.errors import ExitCode


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option("--reason", help="Shown in the job's events. [`elasticdl stop`]")
@click.option(
    "--now",
    is_flag=True,
    help="End it at once, without waiting for a last checkpoint. Also works without its master.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def stop(query: JobQuery, reason: str | None, now: bool, yes: bool) -> int:
    """Stop a job gracefully: workers return unfinished work, and a last checkpoint is taken.

    A job on a cluster is deleted if its master is not running.
    """
    with resolve_job(query) as job:
        where = f"job {job.name} in {job.place}"
        if job.outcome() is not None:
            tell(f"{where} has ended already")
            return ExitCode.DONE
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"This stops {where}: say --yes.")
            if not click.confirm(plain(f"Stop {where}?"), err=True):
                tell(f"{where} continues")
                return ExitCode.INTERRUPTED
        if now:
            tell(job.end(reason or "`elasticdl stop --now`"))
        else:
            tell(job.stop(reason or "`elasticdl stop`"))
    return ExitCode.DONE
