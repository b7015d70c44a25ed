"""`elasticdl.train(...)` and its like: a job from a script or a notebook, with the names of the
command line's flags.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from elasticdl.cli.jobs.job_claim import placed
from elasticdl.cli.jobs.local_launch import LocalJob
from elasticdl.cli.jobs.preflight import checked
from elasticdl.cli.jobs.watch import timed_out
from elasticdl.cli.param_types import worker_range
from elasticdl.cli.request import Request, settle
from elasticdl.cli.views.console import tell
from elasticdl.cli.views.live_view import view_of_script
from elasticdl.cli.views.notebook import picture
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, TransientError
from elasticdl.job import Action, JobSpec
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.jobdir.outcome import Outcome

if TYPE_CHECKING:
    from elasticdl.cli.jobs.kubernetes_handle import KubernetesJobHandle

START_S = 60.0
"""A master answers within a second or two; this is for a machine that is very busy."""


@final
class JobHandle:
    """A job that was started from Python. Thread-safe.

    The job runs in a thread of its own, which starts its processes and owns them. An interpreter
    that ends waits for the
    job. One that is killed takes every process of the job with it.
    """

    def __init__(self, job: LocalJob, spec: JobSpec, claim: ExitStack) -> None:
        """Starts the thread.

        `claim` keeps the job's directory ours and is closed when the job has ended.
        """
        self.job_dir = Path(spec.cluster.job_dir)
        self.job_name = spec.cluster.job_name
        self._job = job
        self._pid = os.getpid()
        self._claim = claim
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        # Not the thread itself is waited for: a `join` that Ctrl-C interrupts takes the thread for
        # ended, in Python 3.11.
        self._over = threading.Event()
        threading.Thread(target=self._run, name=f"job {self.job_name}", daemon=False).start()

    def __repr__(self) -> str:
        state = (
            f"of process {self._pid}"
            if os.getpid() != self._pid
            else "runs"
            if self.running
            else "has ended"
        )
        return f"<job {self.job_name} {state}, in {self.job_dir}>"

    def _repr_html_(self) -> str:
        """As a notebook shows it: how the job is doing now."""
        try:
            status = self.status() if self._job.answers.is_set() else None
        except ElasticDLError:
            status = None
        return picture(repr(self), status)._repr_html_()

    @property
    def running(self) -> bool:
        """Whether the job has not ended yet."""
        return not self._over.is_set()

    def status(self) -> dict[str, Any]:
        """Return the master's status, or the last one that it left.

        The keys are those of `elasticdl status -o json`.

        Raises:
            TransientError: the master does not answer now.
            PermanentError: the job has ended and left no status.
        """
        self._wait_for_master()
        try:
            return self._job.status()
        except TransientError:
            left = read_json(JobDirectory(self.job_dir).status).get("status")
            if isinstance(left, dict):
                return left
            self._must_run()
            raise

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Block until the job has ended. Ctrl-C ends the wait, not the job.

        A job that `stop` stopped is not an error: see `exit_code` and `hint` of the outcome.

        Raises:
            TransientError: the job has not ended after `timeout_s`.
            UserError: the job failed because of the user's code, model or data.
            PermanentError: the job failed for another reason.
        """
        self._must_be_ours()
        try:
            self._over.wait(timeout_s)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"job {self.job_name} goes on: stop() ends it in order; a script that ends waits"
                " for it"
            )
            raise
        if self.running:
            raise timed_out(self.job_name, timeout_s or 0.0)
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        error = self._outcome.error()
        if error is not None:
            raise error
        return self._outcome

    def stop(self, reason: str = "stop() was called") -> None:
        """Stop the job gracefully: workers drain and a last checkpoint is taken.

        Returns at once; `wait` for the end.
        """
        self._must_be_ours()
        if self.running:
            self._job.stop_from_any_thread(reason)

    def scale(self, low: int, high: int | None = None) -> None:
        """Change the number of workers to between `low` and `high` (default: exactly `low`).

        Raises:
            SpecError: the range is invalid.
            ElasticDLError: the job has ended, or its master does not answer.
        """
        wanted = worker_range(low, high)
        self._wait_for_master()
        self._must_run()
        self._job.scale(*wanted)

    def checkpoint(self) -> None:
        """Take a checkpoint now.

        Raises:
            ElasticDLError: the job has ended, or its master does not answer.
        """
        self._wait_for_master()
        self._must_run()
        self._job.checkpoint()

    def _must_run(self) -> None:
        if not self.running:
            raise PermanentError(f"job {self.job_name} has ended", hint="wait() says how")

    def _must_be_ours(self) -> None:
        """A process that was forked from ours has neither the thread nor the connections."""
        if os.getpid() != self._pid:
            raise PermanentError(
                f"job {self.job_name} is process {self._pid}'s, from which this one was forked",
                hint=f"look after it there, or by `elasticdl status {self.job_dir}`",
            )

    def _wait_for_master(self) -> None:
        self._must_be_ours()
        self._job.answers.wait(START_S)

    def _run(self) -> None:
        """The thread. Whatever happens in it is raised by `wait`."""
        try:
            with self._claim:
                self._outcome = asyncio.run(self._job.run())
        except BaseException as error:  # noqa: BLE001 - the top of the thread
            self._problem = error if isinstance(error, ElasticDLError) else _unexpected(error)
        finally:
            self._over.set()
            self._job.answers.set()


def _unexpected(error: BaseException) -> ElasticDLError:
    problem = PermanentError(f"the job's thread failed: {error!r}", hint="a bug: please report it")
    problem.__cause__ = error
    problem.exit_code = ExitCode.JOB_FAILED
    return problem


def start(
    action: Action, flags: dict[str, Any], *, show: bool = True
) -> JobHandle | KubernetesJobHandle:
    """Check and start a job.

    Blocks for the check. Raises SpecError, UserError or, for what a cluster refuses,
    PermanentError.

    Nothing was made or started then.
    """
    spec = settle(Request(action, flags), tell if show else _nobody)
    if spec.on_kubernetes:
        return _submitted(spec, show=show)
    with ExitStack() as stack:
        spec, directory = stack.enter_context(
            placed(spec, lambda job: checked(job, quiet=not show))
        )
        job = LocalJob(spec, directory, view_of_script(f"job {spec.cluster.job_name}", show=show))
        return JobHandle(job, spec, stack.pop_all())


def _nobody(_text: str) -> None:
    """Nobody is told."""


def _submitted(spec: JobSpec, *, show: bool) -> KubernetesJobHandle:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cli.jobs.kubernetes_handle import KubernetesJobHandle
    from elasticdl.cli.jobs.kubernetes_launch import submit

    line = ClusterClient(spec.kubernetes.namespace, spec.kubernetes.kube_context)
    try:
        name = submit(line, spec).cluster.job_name
    except BaseException:
        line.close()
        raise
    return KubernetesJobHandle(line, name, show=show)


def train(*, show: bool = True, **flags: Any) -> JobHandle | KubernetesJobHandle:  # noqa: ANN401 - the flags of `elasticdl train`
    """Train a model and return a handle of the job. Blocks for the check of model and data.

    With `image_name` the job runs on a Kubernetes cluster, and the handle is a
    `KubernetesJobHandle` with the same methods.

    Args:
        show: Show progress: a live view under the cell in a notebook, lines on stderr elsewhere.
        **flags: The flags of `elasticdl train`, in snake case.

    Raises:
        SpecError: A flag is wrong. Nothing was started.
        UserError: The model or the data is wrong. Nothing was started.
        PermanentError: The cluster refuses the job. Nothing was started.
    """
    return start(Action.TRAIN, flags, show=show)


def evaluate(*, show: bool = True, **flags: Any) -> JobHandle | KubernetesJobHandle:  # noqa: ANN401 - as above
    """Evaluate a trained model.

    Arguments and errors are those of `train`, with the flags of `elasticdl evaluate`.
    """
    return start(Action.EVALUATE, flags, show=show)


def predict(*, show: bool = True, **flags: Any) -> JobHandle | KubernetesJobHandle:  # noqa: ANN401 - as above
    """Write a trained model's predictions.

    Arguments and errors are those of `train`, with the flags of `elasticdl predict`.
    """
    return start(Action.PREDICT, flags, show=show)
