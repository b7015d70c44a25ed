"""A job on a cluster: from its flags to its submission, and to its end if somebody waits for that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from elasticdl.cli.documents import Format, render
from elasticdl.cli.place import is_name_of_ours, name_for
from elasticdl.cli.telling import tell
from elasticdl.errors import ExitCode, SpecError
from elasticdl.job import JobSpec
from elasticdl.master.way_on import next_name

if TYPE_CHECKING:
    from elasticdl.cli.line import ClusterLine

PASSING_DIR = "/tmp/elasticdl"  # noqa: S108 - in a pod
"""Where a job's directory is that nobody asked to keep: in the master's pod, and gone with it."""

_MOST_NAMES = 20


def settle_for_cluster(spec: JobSpec, wall_s: float | None = None) -> JobSpec:
    """The job with a name and a directory. Paths stay as they are: they are those in its pods. Raises SpecError."""
    name = spec.cluster.job_name or name_for(spec.model.model_def, time.time() if wall_s is None else wall_s)
    directory = spec.cluster.job_dir or f"{PASSING_DIR}/{name}"
    if not directory.startswith("/"):
        raise SpecError(f"--job-dir {directory} is not absolute", hint="on a cluster it is a path in the pods, such as /data/NAME")
    settled = {**spec.flags(), "job_name": name, "job_dir": directory}
    return JobSpec.from_flags(spec.action, settled, workers_anew=spec.workers_anew)


def submit(line: ClusterLine, spec: JobSpec) -> str:
    """Submit a settled job; its name, which is another one than the spec's if that was of our making and is taken. Blocks for seconds.

    Raises SpecError if the name is taken, PermanentError (exit code 3) for what the cluster refuses: nothing was made then.
    """
    from elasticdl.cluster import submitting

    made_by_us = is_name_of_ours(spec.cluster.job_name, spec.model.model_def)
    for _ in range(_MOST_NAMES):
        try:
            done = line.run(submitting.submit(line.api, spec, line.namespace, tell), submitting.LIMIT_S + 5)
            break
        except submitting.NameTaken:
            if not made_by_us:
                raise
            cluster = spec.cluster.model_copy(update={"job_name": next_name(spec.cluster.job_name)})
            spec = spec.model_copy(update={"cluster": cluster})
    else:
        raise SpecError(f"jobs have all names up to {spec.cluster.job_name}", hint="name another --job-name")
    for warning in done.warnings:
        tell(f"Warning: {warning}")
    return str(done.job["metadata"]["name"])


def submit_job(spec: JobSpec, form: Format | None, *, dry_run: bool, detach: bool) -> int:
    """Submit a job, and wait for its end unless told to detach. Returns the exit code; raises ElasticDLError."""
    spec = settle_for_cluster(spec)
    if dry_run:
        from elasticdl.cluster.planning import job_object

        text = render(job_object(spec, spec.kubernetes.namespace), Format.JSON if form is Format.JSON else Format.YAML)
        click.echo(text, nl=False)
        return ExitCode.DONE
    from elasticdl.cli.line import ClusterLine

    with ClusterLine(spec.kubernetes.namespace, spec.kubernetes.kube_context) as line:
        name = submit(line, spec)
        tell(f"job {name} is submitted to namespace {line.namespace}")
        if not spec.kubernetes.keeps(spec.cluster.job_dir):
            tell(f"what it leaves goes with its master's pod ({spec.cluster.job_dir}): --volume and --job-dir keep it")
        if not detach:
            return _watched(line, name, spec, form or Format.TABLE)
        _look(line, name)
        tell(way_back(spec, name, line.namespace))
        if form in (None, Format.TABLE):
            click.echo(name)
        else:
            click.echo(render({"job": name, "place": "kubernetes", "namespace": line.namespace}, form), nl=False)
        return ExitCode.DONE


def _look(line: ClusterLine, name: str) -> None:
    """Nobody waits for the job: whether it can start at all is seen now. Raises CannotStart."""
    from elasticdl.cli.cluster_job import ClusterJob
    from elasticdl.cli.starting import CannotStart, cleared_away, first_look

    job = ClusterJob(line, name)
    try:
        first_look(job)
    except CannotStart as error:
        raise cleared_away(job, error) from error
    except KeyboardInterrupt:
        return  # Nobody wants to see it: it is submitted.
    finally:
        job.close()


def _watched(line: ClusterLine, name: str, spec: JobSpec, form: Format) -> int:
    from elasticdl.cli.cluster_job import ClusterJob
    from elasticdl.cli.ending import tell_end
    from elasticdl.cli.starting import CannotStart, cleared_away
    from elasticdl.cli.view import view_for
    from elasticdl.cli.watching import watch

    job, view = ClusterJob(line, name), view_for()
    try:
        outcome = watch(job, view)
    except CannotStart as error:
        raise cleared_away(job, error) from error
    except KeyboardInterrupt:
        view.close()
        tell(f"the job goes on without you\n{way_back(spec, name, line.namespace)}")
        return ExitCode.INTERRUPTED
    finally:
        view.close()
        job.close()
    tell_end(outcome, form)
    return outcome.exit_code


def way_back(spec: JobSpec, name: str, namespace: str) -> str:
    """The next commands to type."""
    given = f" --namespace {namespace}" if spec.kubernetes.namespace else ""
    given += f" --kube-context {spec.kubernetes.kube_context}" if spec.kubernetes.kube_context else ""
    verbs = {"come back": "wait", "how it is doing": "status", "its page": "dashboard", "end it": "stop"}
    return "; ".join(f"{what}: elasticdl {verb} {name}{given}" for what, verb in verbs.items())
