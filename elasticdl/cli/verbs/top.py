"""`top`: what all jobs of a cluster have, want and wait for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, cluster_options
from elasticdl.cli.views import progress
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, as_json, render

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cluster.kubernetes.usage import ClusterUsage, JobUsage

_EVERY_S = 2.0
_HEAD = (
    "NAMESPACE",
    "JOB",
    "STATE",
    "WEIGHT",
    "SHARE",
    "WORKERS",
    "SERVERS",
    "AGE",
    "WAITS",
    "FOR",
)


@click.command(context_settings=SETTINGS)
@cluster_options
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In all namespaces.")
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until Ctrl-C.")
@FORMAT_OPTION
def top(namespace: str, kube_context: str, everywhere: bool, watch: bool, form: str) -> None:
    """Show what the jobs of a cluster have, want and wait for, and how full the cluster is.

    SHARE is a job's largest share of any resource. WORKERS are those that have a node, of those
    that the job was submitted with (MIN:MAX). With --watch, JSON has one document a line.
    """
    if everywhere and namespace:
        raise click.UsageError("-A and --namespace cannot be used together.")
    from elasticdl.cli.jobs.cluster_client import ClusterClient

    with ClusterClient(namespace, kube_context) as client:
        _put(client, Format(form), everywhere=everywhere, again=watch)
        while watch:
            time.sleep(_EVERY_S)
            _put(client, Format(form), everywhere=everywhere, again=True)


def _put(client: ClusterClient, form: Format, *, everywhere: bool, again: bool) -> None:
    from elasticdl.cluster.kubernetes.jobs import Jobs

    usage = client.run(Jobs(client.api, client.namespace).usage(time.time(), everywhere=everywhere))
    if form is Format.JSON and again:
        put(as_json(usage.as_document()))
    elif form is not Format.TABLE:
        put(("---\n" if again else "") + render(usage.as_document(), form))
    else:
        if again:
            click.clear()
        _show(usage, "any namespace" if everywhere else f"namespace {client.namespace}")


def _show(usage: ClusterUsage, where: str) -> None:
    if usage.utilisation:
        show(f"requested of the cluster: {_percents(usage.utilisation)}")
    if usage.of_jobs:
        show(f"requested by these jobs: {_percents(usage.of_jobs)}")
    else:
        tell("you may not list nodes, so the cluster's utilisation is unknown")
    if not usage.jobs:
        tell(f"no job runs or waits in {where}")
        return
    for line in progress.table([list(_HEAD), *(_row(job) for job in usage.jobs)]):
        show(line)


def _percents(shares: Mapping[str, float]) -> str:
    """Only resources that are in use."""
    used = [f"{key} {share:.0%}" for key, share in shares.items() if share > 0]
    return ", ".join(used) or "nothing"


def _row(job: JobUsage) -> list[str]:
    return [
        job.namespace,
        job.name,
        job.state,
        str(job.weight),
        "-" if job.share is None else f"{job.share:.1%}",
        f"{job.workers} of {_range(job.minimum, job.maximum)}",
        f"{job.servers} of {_range(job.wished_servers, job.most_servers)}",
        progress.age(job.age_s),
        progress.age(job.waiting_s) if job.waits_for else "-",
        job.waits_for.partition("\n")[0] or "-",
    ]


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}:{high}"
