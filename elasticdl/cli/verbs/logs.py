"""`logs`: print the log of a job's process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, job_argument
from elasticdl.cli.jobs.job import JobQuery, LogRequest
from elasticdl.cli.jobs.local_jobs import local_names
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.param_types import TEXT, Lines
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.cluster.kubernetes.kubeconfig import no_cluster
from elasticdl.errors import ElasticDLError


def _processes(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the processes of a local job. Never raises."""
    job, job_dir = (str(context.params.get(key) or "") for key in ("job", "job_dir"))
    with suppress(ElasticDLError, OSError, click.ClickException):
        if no_cluster() or job_dir or job in local_names():
            with resolve_job(JobQuery(job, job_dir)) as target:
                return [entry.process for entry in target.logs() if entry.process.startswith(begun)]
    return []


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.argument("process", type=TEXT, required=False, default="", shell_complete=_processes)
@click.option(
    "-n",
    "--lines",
    type=Lines(),
    default=200,
    metavar="N",
    help="Print only the last N lines; 0 prints all. [200]",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Keep printing until the process or the job ends.",
)
@FORMAT_OPTION
def logs(query: JobQuery, process: str, lines: int, follow: bool, form: str) -> None:
    """Print the log of PROCESS (worker-0, ps-1, master-0), or list the logs.

    On a cluster each incarnation of a process has its own log: `ps-0` is the newest, `ps-0.0` the
    first, `ps-0.1` the second.
    """
    if query.job_dir and query.job and not process:
        query, process = replace(query, job=""), query.job  # `logs --job-dir D worker-0`
    with resolve_job(query) as job:
        if process:
            if form != Format.TABLE:
                raise click.UsageError("-o is for the list of logs: a log is printed as it is.")
            for text in job.read_log(LogRequest(process, lines, follow)):
                put(text)
            return
        if follow:
            raise click.UsageError("Name the process to follow: elasticdl logs JOB worker-0 -f.")
        entries = job.logs()
        if form != Format.TABLE:
            put(
                render(
                    [{"process": entry.process, "what": entry.what} for entry in entries],
                    Format(form),
                )
            )
            return
        for entry in entries:
            show(f"{entry.process:<12} {entry.what}")
        if entries:
            tell("name a process to print its log: elasticdl logs JOB PROCESS")
