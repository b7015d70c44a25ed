"""`scale`: change the number of workers of a job."""

from __future__ import annotations

import click

from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.param_types import typed_range
from elasticdl.cli.views.console import tell
from elasticdl.formatting import amount


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option("--num-workers", required=True, metavar="N|MIN:MAX", help="New number of workers.")
def scale(query: JobQuery, num_workers: str) -> None:
    """Change the number of workers."""
    low, high = typed_range(num_workers)
    with resolve_job(query) as job:
        job.scale(low, high)
    tell(f"asked for {amount(low, 'worker') if low == high else f'{low}:{high} workers'}")
