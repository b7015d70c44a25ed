"""Which ends of its master's pods a Job counts.

The Job's controller counts each failed or deleted pod that has its finalizer. It waits 10 s, 20 s,
40 s and so on before the next pod, for the life of the Job, and gives up after `backoffLimit`. That
is right for a master that cannot start, and wrong for one that is preempted now and then. So a
master that has run for a while takes the finalizer off its own pod: from then on the controller
takes the pod for one that was counted, and replaces it at once. The master puts the finalizer back
before it exits for good.
"""

from __future__ import annotations

from typing import final

from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.plans import Json, Owner

FINALIZER = "batch.kubernetes.io/job-tracking"
_REMOVE = "$deleteFromPrimitiveList/finalizers"


@final
class JobAccounting:
    """The Job's view of one pod. Methods raise ApiRefused, ApiAway."""

    def __init__(self, api: ApiServer, owner: Owner, pod_name: str) -> None:
        self._api = api
        self._pod = f"/api/v1/namespaces/{owner.namespace}/pods/{pod_name}"
        self._job = f"/apis/batch/v1/namespaces/{owner.namespace}/jobs/{owner.job}"

    async def exempt(self, more_failures: int) -> None:
        """Do not count the end of this pod. The Job may fail `more_failures` times from now on."""
        job = await self._api.get(self._job)
        allowed = _failures(job) + more_failures
        if int(job["spec"].get("backoffLimit") or 0) < allowed:
            await self._api.patch(self._job, {"spec": {"backoffLimit": allowed}})
        await self._api.patch(self._pod, {"metadata": {_REMOVE: [FINALIZER]}})

    async def count(self, *, failure: bool) -> None:
        """Count the end of this pod, which follows; with `failure` it is the end of the Job.

        Kubernetes adds no finalizer to a pod that is being deleted. Then the next master has to
        repeat the end.
        """
        if failure:
            failed = _failures(await self._api.get(self._job))
            # A lower limit would have the controller delete this pod, and its last words with it.
            await self._api.patch(self._job, {"spec": {"backoffLimit": failed}})
        try:
            await self._api.patch(self._pod, {"metadata": {"finalizers": [FINALIZER]}})
        except ApiRefused as refused:
            if refused.status.code not in (404, 422):
                raise


def _failures(job: Json) -> int:
    status = job.get("status") or {}
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("failed") or ()
    return int(status.get("failed") or 0) + len(uncounted)
