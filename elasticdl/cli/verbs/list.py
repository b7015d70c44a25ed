"""`list`: list local jobs and jobs on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, cluster_options
from elasticdl.cli.jobs.job import Report
from elasticdl.cli.jobs.local_jobs import local_jobs
from elasticdl.cli.views import progress
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.cluster.kubernetes.kubeconfig import no_cluster
from elasticdl.errors import ElasticDLError
from elasticdl.jobdir.layout import JOBS

if TYPE_CHECKING:
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob

_AT_ONCE = 8
_CALL_S = 4.0


@click.command("list", context_settings=SETTINGS)
@cluster_options
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In all namespaces.")
@FORMAT_OPTION
def list_(namespace: str, kube_context: str, everywhere: bool, form: str) -> None:
    """List the jobs in ./jobs and those of the current kube context.

    With --namespace, --kube-context or -A, list only the jobs on the cluster.
    """
    if everywhere and namespace:
        raise click.UsageError("-A and --namespace cannot be used together.")
    looked = [] if namespace or kube_context or everywhere else [f"./{JOBS}"]
    only_cluster = bool(namespace or kube_context or everywhere)
    reports = [] if only_cluster else _local()
    if only_cluster or not no_cluster():
        try:
            reports += _on_cluster(namespace, kube_context, looked, everywhere=everywhere)
        except ElasticDLError as error:
            if only_cluster:
                raise
            tell(f"cannot list the jobs of the current kube context: {error.message}")
    if form != Format.TABLE:
        put(render([as_row(report) for report in reports], Format(form)))
        return
    if not reports:
        tell(f"there are no jobs in {' or '.join(looked)}")
        return
    rows = [[cell(report) for cell in _COLUMNS.values()] for report in reports]
    for line in progress.table([list(_COLUMNS), *rows]):
        show(line)


def _where(report: Report) -> str:
    """Return the path, relative if it is below the current directory."""
    here = os.path.join(os.getcwd(), "")
    return report.place.job_dir.removeprefix(here) or str(report.place)


def _progress(report: Report) -> str:
    share = progress.job_share(report.status)
    return share.percent if share.expected else "-"


def _steps(report: Report) -> str:
    if report.status.ring is not None:
        return "ring"
    steps = report.status.steps
    return "-" if steps is None else "sync" if steps.sync else "async"


def _what(report: Report) -> str:
    return (report.outcome or report.status.message).partition("\n")[0]


_COLUMNS: Mapping[str, Callable[[Report], str]] = {
    "JOB": lambda report: report.job,
    "WHERE": _where,
    "STATE": lambda report: report.state,
    "PROGRESS": _progress,
    "STEPS": _steps,
    "AGE": lambda report: progress.age(report.age_s),
    "WHAT": _what,
}


def as_row(report: Report) -> dict[str, object]:
    """Return what JSON and YAML have of a job."""
    whole, counts = report.as_dict(), report.status.records
    records = {"trained": counts.trained, "expected": counts.expected}
    steps = whole["steps"]
    keys = "job place namespace job_dir state age_s message exit_code outcome"
    return {**{key: whole[key] for key in keys.split()}, "records": records, "steps": steps}


def _local() -> list[Report]:
    jobs = local_jobs(lambda path: tell(f"cannot list {path}: permission denied"))
    if not jobs:
        return []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        reports = list(pool.map(lambda job: job.report(), jobs))
    return sorted(reports, key=lambda report: report.age_s)


def _on_cluster(
    namespace: str, context: str, looked: list[str], *, everywhere: bool
) -> list[Report]:
    """Return the jobs on the cluster; add the searched places to `looked`."""
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
    from elasticdl.cluster.kubernetes.jobs import Jobs

    with ClusterClient(namespace, context) as cluster:
        looked.append("any namespace" if everywhere else f"namespace {cluster.namespace}")
        states = cluster.run(Jobs(cluster.api, cluster.namespace).all(everywhere=everywhere))
        jobs = [
            KubernetesJob(cluster, state.name, namespace=state.namespace, call_s=_CALL_S)
            for state in states
        ]
        if not jobs:
            return []
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return [report for report in pool.map(_report, jobs) if report is not None]
        finally:
            for job in jobs:
                job.close()


def _report(job: KubernetesJob) -> Report | None:
    """Return the job's report; None if the job has vanished meanwhile."""
    with suppress(ElasticDLError):
        return job.report()
    return None
