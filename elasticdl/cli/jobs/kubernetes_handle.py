"""The handle of a job on a cluster that was submitted from Python: what `JobHandle` is for one on
this machine.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, final

from elasticdl.cli.jobs import watch
from elasticdl.cli.jobs.cluster_client import ClusterClient
from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
from elasticdl.cli.jobs.start_diagnosis import CannotStart
from elasticdl.cli.param_types import worker_range
from elasticdl.cli.views.live_view import NoView, View, view_of_script
from elasticdl.cli.views.notebook import picture
from elasticdl.errors import ElasticDLError
from elasticdl.jobdir.outcome import Outcome


@final
class KubernetesJobHandle:
    """A job on a cluster.

    Thread-safe. The job needs neither this handle nor this interpreter: it goes on without them.
    """

    def __init__(self, line: ClusterClient, name: str, *, show: bool) -> None:
        """Takes `line` over.

        `show`: progress until the job has ended, in a notebook or on stderr.
        """
        self.job_name = name
        self.namespace = line.namespace
        self._job = KubernetesJob(line, name)
        self._close = weakref.finalize(self, _close, self._job, line)
        if show:
            view = view_of_script(f"job {name}", show=True)
            showing = threading.Thread(
                target=_show, args=(self._job, view), name=f"job {name}", daemon=True
            )
            showing.start()

    def __repr__(self) -> str:
        return f"<job {self.job_name} in namespace {self.namespace}>"

    def _repr_html_(self) -> str:
        """As a notebook shows it: how the job is doing now."""
        try:
            status = self.status()
        except ElasticDLError as error:
            return picture(f"{self!r}: {error.message}", None)._repr_html_()
        return picture(repr(self), status)._repr_html_()

    @property
    def running(self) -> bool:
        """Whether the job has not ended yet. Raises ElasticDLError if that cannot be learned."""
        try:
            return self._job.outcome() is None
        except CannotStart:
            return True  # The cluster goes on trying until somebody stops it.

    def status(self) -> dict[str, Any]:
        """What the master tells; what its pods show where it cannot be asked.

        Raises ElasticDLError.
        """
        return dict(self._job.report().status)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Block until the job has ended. Raises as `JobHandle.wait` does."""
        outcome = watch.wait(self._job, NoView(), timeout_s)
        error = outcome.error()
        if error is not None:
            raise error
        return outcome

    def stop(self, reason: str = "stop() was called") -> None:
        """Have the job end in order.

        Returns at once; `wait` for the end. Raises ElasticDLError if it cannot be told.
        """
        self._job.stop(reason)

    def scale(self, low: int, high: int | None = None) -> None:
        """Ask for between `low` and `high` workers (default: exactly `low`).

        Raises SpecError, ElasticDLError.
        """
        self._job.scale(*worker_range(low, high))

    def checkpoint(self) -> None:
        """Ask for a checkpoint now. Raises ElasticDLError."""
        self._job.checkpoint()

    def close(self) -> None:
        """Drop the connection to the cluster; the handle is of no use then.

        Happens by itself with the last reference.
        """
        self._close()


def _show(job: KubernetesJob, view: View) -> None:
    """The thread."""
    try:
        watch.watch(job, view)
    except ElasticDLError as error:
        view.say(error.message)


def _close(job: KubernetesJob, line: ClusterClient) -> None:
    job.close()
    line.close()
