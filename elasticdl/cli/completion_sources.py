"""Names that are offered to a shell: of jobs, namespaces and kube contexts, as fast as a person
types.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from elasticdl.cli.jobs.kubeconfig import contexts, no_cluster
from elasticdl.cli.jobs.local_jobs import local_names
from elasticdl.cli.views.console import silence
from elasticdl.errors import ElasticDLError

if TYPE_CHECKING:
    import click

    from elasticdl.cli.jobs.cluster_client import ClusterClient

CLUSTER_WITHIN_S = 1.5
"""So long a person waits for the names of jobs on a cluster; then only those of this machine are
offered.
"""
_WITHIN_VARIABLE = "ELASTICDL_COMPLETION_SECONDS"


def job_names(begun: str, namespace: str, context: str) -> list[str]:
    """Of the jobs in ./jobs and on the cluster that begin so; with a namespace or context only the
    latter. Never raises.
    """
    on_cluster_only = bool(namespace or context)
    names: Iterable[str] = ()
    with suppress(OSError):
        names = () if on_cluster_only else local_names()
    if on_cluster_only or not no_cluster():
        names = [*names, *_asked(namespace, context, _jobs)]
    return sorted({name for name in names if name.startswith(begun)})


def context_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Of the kube contexts that begin so. Never raises."""
    return [name for name in contexts() if name.startswith(begun)]


def namespace_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Of the cluster's namespaces that begin so, if we may see them; those of --kube-context, if it
    is there. Never raises.
    """
    if no_cluster():
        return []
    return sorted(
        name
        for name in _asked("", str(context.params.get("kube_context") or ""), _namespaces)
        if name.startswith(begun)
    )


def _namespaces(line: ClusterClient, within_s: float) -> list[str]:
    from elasticdl.cluster.kubernetes.jobs import Jobs

    return line.run(Jobs(line.api, line.namespace).namespaces(), within_s)


def _jobs(line: ClusterClient, within_s: float) -> list[str]:
    from elasticdl.cluster.kubernetes.jobs import Jobs

    return [facts.name for facts in line.run(Jobs(line.api, line.namespace).all(), within_s)]


def _asked(
    namespace: str, context: str, ask: Callable[[ClusterClient, float], list[str]]
) -> list[str]:
    """What is known in time.

    Whatever is wrong with the cluster, this is not the moment to say it.
    """
    within_s = CLUSTER_WITHIN_S
    with suppress(ValueError):
        within_s = float(os.environ.get(_WITHIN_VARIABLE, CLUSTER_WITHIN_S))
    if within_s <= 0:
        return []
    silence(sys.stderr)
    found: list[str] = []

    def work() -> None:
        from elasticdl.cli.jobs.cluster_client import ClusterClient

        try:
            with ClusterClient(namespace, context) as line:
                found.extend(ask(line, within_s))
        except ElasticDLError:
            return

    asking = threading.Thread(target=work, name="names of jobs", daemon=True)
    asking.start()
    asking.join(within_s)
    return list(found)
