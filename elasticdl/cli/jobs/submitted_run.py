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
    """A `HandledRun`. Thread-safe. The job continues without it and without this interpreter."""

    state = ""

    def __init__(self, job: KubernetesJob, cluster: ClusterClient, view: View | None) -> None:
        """Take ownership of `cluster`. `view` shows progress until the job ends."""
        self._job = job
        self._close = weakref.finalize(self, _close, job, cluster)
        if view is not None:
            threading.Thread(
                target=_show, args=(job, view), name=f"job {job.name}", daemon=True
            ).start()

    @property
    def running(self) -> bool:
        """Return whether the job runs. Raises ElasticDLError if the cluster does not answer."""
        try:
            return self._job.outcome() is None
        except CannotStart:
            return True  # The cluster keeps trying until somebody stops the job.

    def ready(self) -> None:
        """Return at once: a job on a cluster can always be queried."""

    def wait(self, timeout_s: float | None) -> Outcome:
        return watch.wait(self._job, NoView(), timeout_s)

    def stop(self, reason: str) -> None:
        self._job.stop(reason)

    def close(self) -> None:
        """Drop the connection to the cluster. Also happens when the last reference goes."""
        self._close()


def _show(job: KubernetesJob, view: View) -> None:
    """Show progress; runs in a thread."""
    try:
        watch.watch(job, view)
    except ElasticDLError as error:
        view.say(error.message)


def _close(job: KubernetesJob, cluster: ClusterClient) -> None:
    job.close()
    cluster.close()
