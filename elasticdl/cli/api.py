"""`elasticdl.train(...)` and its like: a job from a script or a notebook, with the names of the
command line's flags.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

from elasticdl.cli.jobs.job import Job
from elasticdl.cli.jobs.job_claim import placed
from elasticdl.cli.jobs.preflight import checked
from elasticdl.cli.param_types import worker_range
from elasticdl.cli.request import Request, settle
from elasticdl.cli.views.console import tell
from elasticdl.cli.views.live_view import view_of_script
from elasticdl.cli.views.notebook import picture
from elasticdl.errors import ElasticDLError
from elasticdl.job import Action, JobSpec
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.outcome import Outcome

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient


class HandledRun(Protocol):
    """What differs between a job that this interpreter runs and one that it submitted."""

    @property
    def running(self) -> bool:
        """Whether the job has not ended yet."""

    @property
    def state(self) -> str:
        """For `repr`; '' where only the job itself could tell."""

    def ready(self) -> None:
        """Return when the job can be asked, or has ended."""

    def wait(self, timeout_s: float | None) -> Outcome:
        """Block until the job has ended. Raises TransientError after `timeout_s`."""

    def stop(self, reason: str) -> None:
        """Have the job end in order; returns at once."""

    def close(self) -> None:
        """Drop connections."""


@final
class JobHandle:
    """A job that was started from Python. Thread-safe.

    A job on this machine runs in a thread of its own, which starts its processes and owns them. An
    interpreter that ends waits for the job. One that is killed takes every process of the job with
    it. A job on a cluster goes on without this handle and without this interpreter.
    """

    def __init__(self, job: Job, run: HandledRun) -> None:
        self._job, self._run = job, run
        self.job_name = job.name
        self.job_dir = Path(job.place.job_dir) if job.place.job_dir else None
        """On this machine; None for a job on a cluster."""
        self.namespace = job.place.namespace
        """On a cluster; '' for a job on this machine."""

    def __repr__(self) -> str:
        parts = ("job", self.job_name, self._run.state, f"in {self._job.place}")
        return f"<{' '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        """As a notebook shows it: how the job is doing now."""
        try:
            return picture(repr(self), self._job.report().status)._repr_html_()
        except ElasticDLError as error:
            return picture(f"{self!r}: {error.message}", None)._repr_html_()

    @property
    def running(self) -> bool:
        """Whether the job has not ended yet.

        Raises ElasticDLError if a cluster cannot be asked.
        """
        return self._run.running

    def status(self) -> JobStatus:
        """Return the master's status, or the last one that it left.

        What is not known is None or empty, and `message` says why.

        Raises ElasticDLError if the job cannot be looked at.
        """
        self._run.ready()
        return self._job.report().status

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Block until the job has ended. Ctrl-C ends the wait, not the job.

        A job that `stop` stopped is not an error: see `exit_code` and `hint` of the outcome.

        Raises:
            TransientError: the job has not ended after `timeout_s`.
            UserError: the job failed because of the user's code, model or data.
            PermanentError: the job failed for another reason.
        """
        outcome = self._run.wait(timeout_s)
        error = outcome.error()
        if error is not None:
            raise error
        return outcome

    def stop(self, reason: str = "stop() was called") -> None:
        """Stop the job gracefully: workers drain and a last checkpoint is taken.

        Returns at once; `wait` for the end. Raises ElasticDLError if a cluster cannot be asked.
        """
        self._run.stop(reason)

    def scale(self, low: int, high: int | None = None) -> None:
        """Change the number of workers to between `low` and `high` (default: exactly `low`).

        Raises:
            SpecError: the range is invalid.
            ElasticDLError: the job has ended, or its master does not answer.
        """
        wanted = worker_range(low, high)
        self._run.ready()
        self._job.scale(*wanted)

    def checkpoint(self) -> None:
        """Take a checkpoint now.

        Raises:
            ElasticDLError: the job has ended, or its master does not answer.
        """
        self._run.ready()
        self._job.checkpoint()

    def close(self) -> None:
        """Drop the connection to a cluster; the handle is of no use then."""
        self._run.close()


def start(action: Action, flags: dict[str, Any], *, show: bool = True) -> JobHandle:
    """Check and start a job.

    Blocks for the check. Raises SpecError, UserError or, for what a cluster refuses,
    PermanentError.

    Nothing was made or started then.
    """
    spec = settle(Request(action, flags), tell if show else _nobody)
    if spec.on_kubernetes:
        return _submitted(spec, show=show)
    from elasticdl.cli.jobs.background_run import BackgroundRun
    from elasticdl.cli.jobs.local_launch import LocalRun

    with ExitStack() as stack:
        spec, directory = stack.enter_context(
            placed(spec, lambda job: checked(job, quiet=not show))
        )
        run = LocalRun(spec, directory, view_of_script(f"job {spec.cluster.job_name}", show=show))
        return JobHandle(run.job, BackgroundRun(run, stack.pop_all()))


def _nobody(_text: str) -> None:
    """Nobody is told."""


def _submitted(spec: JobSpec, *, show: bool) -> JobHandle:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cli.jobs.kubernetes_launch import submit

    cluster = ClusterClient(spec.kubernetes.namespace, spec.kubernetes.kube_context)
    try:
        name = submit(cluster, spec).cluster.job_name
    except BaseException:
        cluster.close()
        raise
    return submitted_handle(cluster, name, show=show)


def submitted_handle(cluster: ClusterClient, name: str, *, show: bool) -> JobHandle:
    """The handle of a job on a cluster. Takes `cluster` over."""
    from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
    from elasticdl.cli.jobs.submitted_run import SubmittedRun

    job = KubernetesJob(cluster, name)
    view = view_of_script(f"job {name}", show=True) if show else None
    return JobHandle(job, SubmittedRun(job, cluster, view))


def train(*, show: bool = True, **flags: Any) -> JobHandle:  # noqa: ANN401 - the flags of `elasticdl train`
    """Train a model and return a handle of the job. Blocks for the check of model and data.

    With `image_name` the job runs on a Kubernetes cluster.

    Args:
        show: Show progress: a live view under the cell in a notebook, lines on stderr elsewhere.
        **flags: The flags of `elasticdl train`, in snake case.

    Raises:
        SpecError: A flag is wrong. Nothing was started.
        UserError: The model or the data is wrong. Nothing was started.
        PermanentError: The cluster refuses the job. Nothing was started.
    """
    return start(Action.TRAIN, flags, show=show)


def evaluate(*, show: bool = True, **flags: Any) -> JobHandle:  # noqa: ANN401 - as above
    """Evaluate a trained model.

    Arguments and errors are those of `train`, with the flags of `elasticdl evaluate`.
    """
    return start(Action.EVALUATE, flags, show=show)


def predict(*, show: bool = True, **flags: Any) -> JobHandle:  # noqa: ANN401 - as above
    """Write a trained model's predictions.

    Arguments and errors are those of `train`, with the flags of `elasticdl predict`.
    """
    return start(Action.PREDICT, flags, show=show)
