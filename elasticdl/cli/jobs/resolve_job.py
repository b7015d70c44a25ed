"""Find the job that a user names.

1. `--job-dir PATH` selects the local job in PATH. PATH, or JOB itself, may be the address of a job.
2. `--namespace` or `--kube-context` selects a job on a cluster.
3. A bare name selects the local job in ./jobs/NAME, in the directory NAME, or of that name below
   ./jobs; else the job in the namespace of the current kube context, if there is one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticdl.addresses import is_address, refuse_one_slash
from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.cli.jobs.job import Job, JobQuery
from elasticdl.cli.jobs.local_jobs import local_jobs, local_names
from elasticdl.cluster.kubernetes.kubeconfig import no_cluster
from elasticdl.errors import ElasticDLError, NoSuchJob, SpecError
from elasticdl.job_problems import clipped
from elasticdl.jobdir.layout import JOBS, JobDirectory

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob

F = TypeVar("F", bound=Callable[..., Any])
_MOST_NAMED = 8
RULE = (
    "Looks for JOB in ./jobs, then in the current kube context; --job-dir or --namespace selects"
    " one."
)


@contextmanager
def resolve_job(query: JobQuery) -> Iterator[Job]:
    """Find the job.

    Raises an error with exit code 4 that lists the searched places, UsageError if nothing names a
    job.
    """
    on_cluster = bool(query.namespace or query.kube_context)
    if not query.job and not query.job_dir:
        hint = "`elasticdl list` shows all." if on_cluster else _known()
        raise click.UsageError(f"Name a job, or give its --job-dir. {hint[0].upper()}{hint[1:]}")
    if query.job_dir and (query.namespace or query.kube_context):
        raise click.UsageError(
            "--job-dir is a job of this machine, --namespace and --kube-context one on a cluster."
        )
    address = query.job_dir or query.job
    try:
        refuse_one_slash(address)
    except ValueError as error:
        raise SpecError(str(error)) from error
    if is_address(address):
        yield from _at_address(address)
        return
    if not on_cluster:
        places = [Path(query.job_dir)] if query.job_dir else [JOBS / query.job, Path(query.job)]
        for place in chain(places, () if query.job_dir else _named(query.job)):
            directory = JobDirectory(place.resolve())
            if _holds_a_job(directory):
                yield DirectoryJob(directory)
                return
        # An absolute path is the same in both.
        query = replace(query, places=tuple(dict.fromkeys(map(str, places))))
    if query.job_dir:
        raise NoSuchJob(f"there is no job in {clipped(query.job_dir)}", hint=_known())
    yield from _on_cluster(query, certain=on_cluster)


def _at_address(address: str) -> Iterator[Job]:
    from elasticdl.cli.jobs.address_job import AddressJob, local_directory

    if (here := local_directory(address)) is not None:
        yield DirectoryJob(here)
        return
    job = AddressJob(address)
    try:
        yield job
    finally:
        job.close()


def _holds_a_job(directory: JobDirectory) -> bool:
    try:
        return directory.spec.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def _named(job: str) -> Iterator[Path]:
    """Yield the directory below ./jobs whose job has this name, if the directory's name differs.

    Raises SpecError if there are several, so that nobody stops the wrong job.
    """
    paths = [other.directory.path for other in local_jobs() if other.name == job]
    if len(paths) > 1:
        names = " and ".join(str(JOBS / path.name) for path in paths)
        raise SpecError(
            f"there are {len(paths)} jobs {job}, in {names}",
            hint=f"choose one, for example --job-dir {JOBS / paths[0].name}",
        )
    yield from paths


def _on_cluster(query: JobQuery, *, certain: bool) -> Iterator[Job]:
    """Find the job on the cluster.

    `certain`: the user named a cluster, so an unreachable cluster is the error.
    """
    here = f"there is no job in {' or '.join(map(clipped, query.places))}"
    if not certain and (reason := no_cluster()):
        raise NoSuchJob(f"{here}; {reason}", hint=_known())
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob

    try:
        cluster = ClusterClient(query.namespace, query.kube_context)
    except ElasticDLError as error:
        raise NoSuchJob(
            (
                f"{here}, and the cluster cannot be asked: {error.message}"
                if not certain
                else error.message
            ),
            hint=error.hint,
        ) from error
    with cluster:
        job = KubernetesJob(cluster, query.job)
        try:
            if not certain:
                _refuse_if_absent(job, here, cluster)
            yield job
        finally:
            job.close()


def _refuse_if_absent(job: KubernetesJob, here: str, cluster: ClusterClient) -> None:
    """Raise an error that lists all searched places if the cluster has no such job."""
    where = f"namespace {cluster.namespace} of the current kube context"
    try:
        job.job_state()
    except NoSuchJob as error:
        raise NoSuchJob(f"{here}, nor in {where}", hint=_known()) from error
    except ElasticDLError as error:
        raise NoSuchJob(
            f"{here}; cannot look for it in {where}: {error.message}",
            hint=error.hint or _known(),
        ) from error


def _known() -> str:
    names = local_names()
    if not names:
        return RULE
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"in ./{JOBS} there are {', '.join(names[:_MOST_NAMED])}{more}; `elasticdl list` shows all"
    )
