"""Names of jobs, namespaces and kube contexts for shell completion, within a time limit."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from elasticdl.cli.jobs.local_jobs import local_names
from elasticdl.cli.views.console import silence
from elasticdl.cluster.kubernetes.kubeconfig import contexts, no_cluster
from elasticdl.errors import ElasticDLError

if TYPE_CHECKING:
    import click

    from elasticdl.cli.jobs.cluster_client import ClusterClient

CLUSTER_WITHIN_S = 1.5
"""Time limit for names from the cluster. After it, completion offers only local names."""
_WITHIN_VARIABLE = "ELASTICDL_COMPLETION_SECONDS"


def job_names(begun: str, namespace: str, context: str) -> list[str]:
    """Return names of jobs that start with `begun`, in ./jobs and on the cluster. Never raises.

    With a namespace or context, only those on the cluster.
    """
    on_cluster_only = bool(namespace or context)
    names: Iterable[str] = ()
    with suppress(OSError):
        names = () if on_cluster_only else local_names()
    if on_cluster_only or not no_cluster():
        names = [*names, *_asked(namespace, context, _jobs)]
    return sorted({name for name in names if name.startswith(begun)})


def context_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return names of kube contexts that start with `begun`. Never raises."""
    return [name for name in contexts() if name.startswith(begun)]


def namespace_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return names of namespaces that start with `begun`. Never raises.

    Empty if the user may not list namespaces. Uses --kube-context if given.
    """
    if no_cluster():
        return []
    return sorted(
        name
        for name in _asked("", str(context.params.get("kube_context") or ""), _namespaces)
        if name.startswith(begun)
    )


def _namespaces(client: ClusterClient, within_s: float) -> list[str]:
    from elasticdl.cluster.kubernetes.jobs import Jobs

    return client.run(Jobs(client.api, client.namespace).namespaces(), within_s)


def _jobs(client: ClusterClient, within_s: float) -> list[str]:
    from elasticdl.cluster.kubernetes.jobs import Jobs

    return [state.name for state in client.run(Jobs(client.api, client.namespace).all(), within_s)]


def _asked(
    namespace: str, context: str, ask: Callable[[ClusterClient, float], list[str]]
) -> list[str]:
    """Return what the cluster answers in time.

    Errors are dropped: a message would garble the command line that is being completed.
    """
    within_s = CLUSTER_WITHIN_S
    with suppress(ValueError):
        within_s = float(os.environ.get(_WITHIN_VARIABLE, CLUSTER_WITHIN_S))
    if within_s <= 0:
        return []
    silence(sys.stderr)
    names: list[str] = []

    def work() -> None:
        from elasticdl.cli.jobs.cluster_client import ClusterClient

        try:
            with ClusterClient(namespace, context) as client:
                names.extend(ask(client, within_s))
        except ElasticDLError:
            return

    asking = threading.Thread(target=work, name="names of jobs", daemon=True)
    asking.start()
    asking.join(within_s)
    return list(names)
