"""`scale`: change the number of workers or parameter servers of a job."""

from __future__ import annotations

import click

from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.param_types import typed_range, typed_server_number
from elasticdl.cli.views.console import tell
from elasticdl.formatting import amount


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option("--num-workers", metavar="N|MIN:MAX", help="New number of workers.")
@click.option(
    "--num-ps-pods",
    metavar="N",
    help="New number of parameter servers. Workers wait while the parameters move.",
)
def scale(query: JobQuery, num_workers: str | None, num_ps_pods: str | None) -> None:
    """Change the number of workers or parameter servers."""
    if num_workers is None and num_ps_pods is None:
        raise click.UsageError("give --num-workers, --num-ps-pods, or both")
    asked, stays = [], ""
    workers = typed_range(num_workers) if num_workers is not None else None
    servers = typed_server_number(num_ps_pods) if num_ps_pods is not None else None
    with resolve_job(query) as job:
        if servers is not None:
            # First: it may be refused, and then nothing changes.
            job.scale_servers(servers)
            asked.append(amount(servers, "parameter server"))
        if workers is not None:
            low, high = workers
            stays = job.scale(low, high)
            asked.append(amount(low, "worker") if low == high else f"{low}:{high} workers")
    tell(f"asked for {' and '.join(asked)}" + (f"; {stays}" if stays else ""))
