"""A job on a cluster that Python code submitted."""

from __future__ import annotations

import threading
import weakref
from typing import final

from elasticdl.cli.jobs import watch
from elasticdl.cli.jobs.cluster_client import ClusterClient
from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
from elasticdl.cli.jobs.start_diagnosis import CannotStart
from elasticdl.cli.views.live_view import NoView, View
from elasticdl.errors import ElasticDLError
from elasticdl.jobdir.outcome import Outcome


@final
class SubmittedRun:
    """A `HandledRun`. Thread-safe. The job goes on without it and without this interpreter."""

    state = ""

    def __init__(self, job: KubernetesJob, cluster: ClusterClient, view: View | None) -> None:
        """Takes `cluster` over. `view`: shows progress until the job has ended."""
        self._job = job
        self._close = weakref.finalize(self, _close, job, cluster)
        if view is not None:
            threading.Thread(
                target=_show, args=(job, view), name=f"job {job.name}", daemon=True
            ).start()

    @property
    def running(self) -> bool:
        """Raises ElasticDLError if that cannot be learned."""
        try:
            return self._job.outcome() is None
        except CannotStart:
            return True  # The cluster goes on trying until somebody stops it.

    def ready(self) -> None:
        """A job on a cluster can always be asked."""

    def wait(self, timeout_s: float | None) -> Outcome:
        return watch.wait(self._job, NoView(), timeout_s)

    def stop(self, reason: str) -> None:
        self._job.stop(reason)

    def close(self) -> None:
        """Drop the connection to the cluster. Happens by itself with the last reference."""
        self._close()


def _show(job: KubernetesJob, view: View) -> None:
    """The thread."""
    try:
        watch.watch(job, view)
    except ElasticDLError as error:
        view.say(error.message)


def _close(job: KubernetesJob, cluster: ClusterClient) -> None:
    job.close()
    cluster.close()
