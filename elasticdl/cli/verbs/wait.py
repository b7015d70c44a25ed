"""`wait`: wait until a job ends."""

from __future__ import annotations

import sys

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, job_argument
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.param_types import Seconds
from elasticdl.cli.views.documents import Format


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    metavar="SECONDS",
    help="Give up after this long, with exit code 124.",
)
@FORMAT_OPTION
def wait(query: JobQuery, timeout_s: float | None, form: str) -> int:
    """Wait for a job to end and exit with its exit code."""
    from elasticdl.cli.jobs import watch
    from elasticdl.cli.views.live_view import LineView
    from elasticdl.cli.views.result_output import tell_end

    with resolve_job(query) as job:
        outcome = watch.wait(job, LineView(sys.stderr), timeout_s)
    tell_end(outcome, Format(form))
    return outcome.exit_code
