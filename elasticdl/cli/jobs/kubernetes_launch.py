"""Submit a job to a cluster, and optionally wait for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.cli.jobs.start_diagnosis import CannotStart, StartLimits, cleared_away, first_look
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.errors import ExitCode, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_name import next_name

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient

_MOST_NAMES = 20


def submit(cluster: ClusterClient, spec: JobSpec) -> JobSpec:
    """Submit a settled job and return it as submitted; blocks for seconds.

    Chooses another generated name if the name is taken.

    Raises SpecError if the name is taken, PermanentError (exit code 3) if the cluster refuses.
    Nothing is created then.
    """
    from elasticdl.cluster.kubernetes import submitting

    for _ in range(_MOST_NAMES):
        try:
            done = cluster.run(
                submitting.submit(cluster.api, spec, cluster.namespace, tell),
                submitting.SubmitLimits().limit_s + 5,
            )
            break
        except submitting.NameTaken:
            if not spec.generated_name:
                raise
            spec = spec.replace(job_name=next_name(spec.cluster.job_name))
    else:
        raise SpecError(
            f"all names up to {spec.cluster.job_name} are in use", hint="name another --job-name"
        )
    for warning in done.warnings:
        tell(f"Warning: {warning}")
    return spec


def submit_job(
    spec: JobSpec,
    form: Format | None,
    *,
    detach: bool,
    limits: StartLimits = StartLimits(),
) -> int:
    """Submit a settled job, and wait for its end unless detached.

    Returns the exit code; raises ElasticDLError.
    """
    from elasticdl.cli.jobs.cluster_client import ClusterClient

    with ClusterClient(spec.kubernetes.namespace, spec.kubernetes.kube_context) as cluster:
        spec = submit(cluster, spec)
        name = spec.cluster.job_name
        tell(f"job {name} is submitted to namespace {cluster.namespace}")
        if not spec.kubernetes.keeps(spec.cluster.job_dir):
            at = spec.checkpoints_at
            tell(
                f"{spec.cluster.job_dir} is deleted with the master's pod"
                + (f", checkpoints stay in {at}" if at else "")
                + ": use --volume and --job-dir to keep it"
            )
        if not detach:
            return _watched(cluster, name, spec, form or Format.TABLE, limits)
        _look(cluster, name, limits)
        tell(next_commands(spec, name, cluster.namespace))
        if form in (None, Format.TABLE):
            show(name)
        else:
            put(render({"job": name, "place": "kubernetes", "namespace": cluster.namespace}, form))
        return ExitCode.DONE


def _look(cluster: ClusterClient, name: str, limits: StartLimits) -> None:
    """Check whether a detached job can start. Raises CannotStart."""
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob

    job = KubernetesJob(cluster, name, start_limit_s=limits.start_limit_s)
    try:
        first_look(job, limits)
    except CannotStart as error:
        raise cleared_away(job, error) from error
    except KeyboardInterrupt:
        return  # The user interrupted the check; the job is submitted.
    finally:
        job.close()


def _watched(
    cluster: ClusterClient, name: str, spec: JobSpec, form: Format, limits: StartLimits
) -> int:
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
    from elasticdl.cli.jobs.watch import watch
    from elasticdl.cli.views.live_view import view_for
    from elasticdl.cli.views.result_output import tell_end

    job, view = KubernetesJob(cluster, name, start_limit_s=limits.start_limit_s), view_for()
    try:
        outcome = watch(job, view)
    except CannotStart as error:
        raise cleared_away(job, error) from error
    except KeyboardInterrupt:
        view.close()
        tell(f"the job continues\n{next_commands(spec, name, cluster.namespace)}")
        return ExitCode.INTERRUPTED
    finally:
        view.close()
        job.close()
    tell_end(outcome, form)
    return outcome.exit_code


def next_commands(spec: JobSpec, name: str, namespace: str) -> str:
    """Return the commands to type next."""
    flags = f" --namespace {namespace}" if spec.kubernetes.namespace else ""
    flags += (
        f" --kube-context {spec.kubernetes.kube_context}" if spec.kubernetes.kube_context else ""
    )
    verbs = {
        "come back": "wait",
        "how it is doing": "status",
        "its page": "dashboard",
        "end it": "stop",
    }
    return "; ".join(f"{what}: elasticdl {verb} {name}{flags}" for what, verb in verbs.items())
