"""The Python API: `elasticdl.train(...)` and others, with the command line's flags."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

from elasticdl.cli.jobs.address_claim import claimed_place
from elasticdl.cli.jobs.job import Job
from elasticdl.cli.param_types import server_number, worker_range
from elasticdl.cli.request import Request, settle
from elasticdl.cli.views.console import tell
from elasticdl.cli.views.live_view import view_of_script
from elasticdl.cli.views.notebook import picture
from elasticdl.errors import ElasticDLError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.outcome import Outcome

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient


class HandledRun(Protocol):
    """The interface to a local or a submitted job."""

    @property
    def running(self) -> bool:
        """Return whether the job has not ended yet."""

    @property
    def state(self) -> str:
        """Return the state for `repr`; '' if only the job itself knows."""

    def ready(self) -> None:
        """Return when the job can be queried, or has ended."""

    def wait(self, timeout_s: float | None) -> Outcome:
        """Block until the job has ended. Raises TransientError after `timeout_s`."""

    def stop(self, reason: str) -> None:
        """Stop the job gracefully; return at once."""

    def close(self) -> None:
        """Drop connections."""


@final
class JobHandle:
    """A job that was started from Python. Thread-safe.

    A local job runs in its own thread, which starts and owns its processes. An exiting interpreter
    waits for the job. A killed interpreter takes every process of the job with it. A job on a
    cluster continues without this handle and without this interpreter.
    """

    def __init__(self, job: Job, run: HandledRun) -> None:
        self._job, self._run = job, run
        self.job_name = job.name
        self.job_dir = Path(job.place.job_dir) if job.place.job_dir else None
        """Directory of a local job; None for a job on a cluster."""
        self.namespace = job.place.namespace
        """Namespace of a job on a cluster; '' for a local job."""

    def __repr__(self) -> str:
        parts = ("job", self.job_name, self._run.state, f"in {self._job.place}")
        return f"<{' '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        """Show the current state in a notebook."""
        try:
            return picture(repr(self), self._job.report().status)._repr_html_()
        except ElasticDLError as error:
            return picture(f"{self!r}: {error.message}", None)._repr_html_()

    @property
    def running(self) -> bool:
        """Return whether the job has not ended yet.

        Raises ElasticDLError if the cluster does not answer.
        """
        return self._run.running

    def status(self) -> JobStatus:
        """Return the master's current status, or its last one.

        Unknown values are None or empty, and `message` says why. Raises ElasticDLError if the job
        is not accessible.
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

        Returns at once; `wait` for the end. Raises ElasticDLError if the cluster does not answer.
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

    def scale_servers(self, number: int) -> None:
        """Change the number of parameter servers; workers wait while the parameters move.

        Raises:
            SpecError: the number is invalid.
            ElasticDLError: the job cannot change it, has ended, or its master does not answer.
        """
        wanted = server_number(number)
        self._run.ready()
        self._job.scale_servers(wanted)

    def checkpoint(self) -> None:
        """Take a checkpoint now.

        Raises:
            ElasticDLError: the job has ended, or its master does not answer.
        """
        self._run.ready()
        self._job.checkpoint()

    def close(self) -> None:
        """Drop the connection to a cluster; the handle is unusable afterwards."""
        self._run.close()


def start(action: Action, flags: dict[str, Any], *, show: bool = True) -> JobHandle:
    """Start a job; blocks until its master has checked model and data.

    Raises SpecError, UserError, or PermanentError if a cluster refuses. Nothing is left then.
    """
    values = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in flags.items()
    }
    spec = settle(Request(action, values), tell if show else _nobody)
    if spec.on_kubernetes:
        return _submitted(spec, show=show)
    from elasticdl.cli.jobs.background_run import BackgroundRun
    from elasticdl.cli.jobs.local_launch import LocalRun
    from elasticdl.master.preflight import refuse_paths

    refuse_paths(spec)
    with ExitStack() as stack:
        spec, directory = stack.enter_context(claimed_place(spec))
        run = LocalRun(spec, directory, view_of_script(f"job {spec.cluster.job_name}", show=show))
        background = BackgroundRun(run, stack.pop_all())
        background.wait_for_begin()
        return JobHandle(run.job, background)


def _nobody(_text: str) -> None:
    """Ignore the message."""


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
    """Return the handle of a job on a cluster. Takes ownership of `cluster`."""
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
        **flags: The flags of `elasticdl train`, in snake case. Paths may be `pathlib.Path`s.

    Raises:
        SpecError: A flag is wrong. Nothing was started.
        UserError: The model or the data is wrong. Nothing is left of the job.
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
