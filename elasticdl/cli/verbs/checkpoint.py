"""`checkpoint`: take a checkpoint of a job now."""

from __future__ import annotations

import click

from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.views.console import tell


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
def checkpoint(query: JobQuery) -> None:
    """Take a checkpoint now."""
    with resolve_job(query) as job:
        job.checkpoint()
    tell("asked for a checkpoint; `elasticdl status` shows it when it is complete")
