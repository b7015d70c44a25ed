"""Submit a job to a cluster, and optionally wait for its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from elasticdl.cli.jobs.start_diagnosis import CannotStart, removal_hint
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.cluster.kubernetes.job_state import JobStage, JobState
from elasticdl.cluster.kubernetes.pod_tracker import START_PROBLEM_LIMIT_S
from elasticdl.cluster.kubernetes.pods import no_room
from elasticdl.errors import ElasticDLError, ExitCode, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_name import next_name

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob

_MOST_NAMES = 20


@final
@dataclass(frozen=True, slots=True)
class StartLimits:
    """Times in seconds."""

    start_limit_s: float = START_PROBLEM_LIMIT_S
    """How long a job may be unable to start."""
    look_s: float = 5.0
    """How long a detached submission checks whether the job starts."""
    look_every_s: float = 0.5


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
        with _submitted(cluster, name, limits) as job:
            if not detach:
                return _watched(job, spec, form or Format.TABLE)
            # The user may interrupt the check: the job is submitted.
            with suppress(KeyboardInterrupt):
                _first_look(job, limits)
        tell(next_commands(spec, name, cluster.namespace))
        if form in (None, Format.TABLE):
            show(name)
        else:
            put(render({"job": name, "place": "kubernetes", "namespace": cluster.namespace}, form))
        return ExitCode.DONE


@contextmanager
def _submitted(cluster: ClusterClient, name: str, limits: StartLimits) -> Iterator[KubernetesJob]:
    """The job that we just submitted; one that cannot start is deleted. Raises CannotStart."""
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob

    job = KubernetesJob(cluster, name, start_limit_s=limits.start_limit_s)
    try:
        yield job
    except CannotStart as error:
        raise _cleared_away(job, error) from error
    finally:
        job.close()


def _watched(job: KubernetesJob, spec: JobSpec, form: Format) -> int:
    from elasticdl.cli.jobs.watch import watch
    from elasticdl.cli.views.live_view import view_for
    from elasticdl.cli.views.result_output import tell_end

    view = view_for()
    try:
        outcome = watch(job, view)
    except KeyboardInterrupt:
        view.close()
        tell(f"the job continues\n{next_commands(spec, job.name, job.place.namespace)}")
        return ExitCode.INTERRUPTED
    finally:
        view.close()
    tell_end(outcome, form)
    return outcome.exit_code


def _first_look(job: KubernetesJob, limits: StartLimits) -> None:
    """Return when the job's master runs or waits for resources, or after 5 s.

    Blocks up to 40 s more while the master cannot start. Returns silently if the cluster does not
    answer or denies access, since the job is submitted.

    Raises CannotStart.
    """
    end_s = time.monotonic() + limits.look_s
    try:
        while True:
            state = job.job_state()
            if state.running_master or state.ended is not None or _waits_for_a_place(state):
                return
            job.outcome()
            if state.standing is not JobStage.STUCK and time.monotonic() > end_s:
                return
            time.sleep(limits.look_every_s)
    except CannotStart:
        raise
    except ElasticDLError:
        return


def _waits_for_a_place(state: JobState) -> bool:
    suspended = bool((state.job.get("spec") or {}).get("suspend"))
    return suspended or (state.master is not None and bool(no_room(state.master)))


def _cleared_away(job: KubernetesJob, error: CannotStart) -> CannotStart:
    """Delete a job that cannot start; return the error to raise."""
    try:
        job.delete()
    except ElasticDLError as refused:
        return CannotStart(
            f"{error.message}\nThe job is still there: {refused.message}",
            error.mend,
            removal_hint(job.name),
        )
    return CannotStart(f"{error.message}\nThe job is deleted again.", error.mend)


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
