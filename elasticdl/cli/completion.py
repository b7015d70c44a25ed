"""`completion`: what a shell needs to complete verbs, flags and names of jobs; and those names, as fast as a person types."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

import click

from elasticdl.cli.finding import local_names, no_cluster
from elasticdl.cli.telling import silence
from elasticdl.errors import ElasticDLError

SHELLS = ("bash", "zsh", "fish")
CLUSTER_WITHIN_S = 1.5
"""So long a person waits for the names of jobs on a cluster; then only those of this machine are offered."""
_WITHIN_VARIABLE = "ELASTICDL_COMPLETION_SECONDS"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what SHELL needs to complete elasticdl's verbs, flags and jobs.

    \b
    bash:  echo 'eval "$(elasticdl completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(elasticdl completion zsh)"' >> ~/.zshrc
    fish:  elasticdl completion fish > ~/.config/fish/completions/elasticdl.fish

    Names of jobs on the cluster are waited for for ELASTICDL_COMPLETION_SECONDS at most, 1.5 if that is not set; 0: not looked for.
    """  # noqa: D301 - click's mark for a paragraph that stays as it is
    from click.shell_completion import get_completion_class

    from elasticdl.cli.main import COMPLETING, elasticdl
    from elasticdl.cli.shells import use_ours

    use_ours()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(elasticdl, {}, "elasticdl", COMPLETING).source())


def job_names(begun: str, namespace: str, context: str) -> list[str]:
    """Of the jobs in ./jobs and on the cluster that begin so; with a namespace or context only the latter. Never raises."""
    on_cluster_only = bool(namespace or context)
    names: Iterable[str] = () if on_cluster_only else local_names()
    if on_cluster_only or not no_cluster():
        names = [*names, *_on_cluster(namespace, context)]
    return sorted({name for name in names if name.startswith(begun)})


def log_names(job: str, job_dir: str, begun: str) -> list[str]:
    """Of the logs of a job of this machine that begin so. Never raises."""
    from elasticdl.cli.finding import found
    from elasticdl.cli.found import Sought

    if no_cluster() or job_dir or job in local_names():
        with suppress(ElasticDLError, OSError, click.ClickException), found(Sought(job, job_dir)) as one:
            return [entry.process for entry in one.logs() if entry.process.startswith(begun)]
    return []


def _on_cluster(namespace: str, context: str) -> list[str]:
    """What is known in time. Whatever is wrong with the cluster, this is not the moment to say it."""
    within_s = CLUSTER_WITHIN_S
    with suppress(ValueError):
        within_s = float(os.environ.get(_WITHIN_VARIABLE, CLUSTER_WITHIN_S))
    if within_s <= 0:
        return []
    silence(sys.stderr)
    found: list[str] = []

    def ask() -> None:
        from elasticdl.cli.line import ClusterLine
        from elasticdl.cluster.jobs import Jobs

        try:
            with ClusterLine(namespace, context) as line:
                found.extend(facts.name for facts in line.run(Jobs(line.api, line.namespace).all(), within_s))
        except ElasticDLError:
            return

    asking = threading.Thread(target=ask, name="names of jobs", daemon=True)
    asking.start()
    asking.join(within_s)
    return list(found)
