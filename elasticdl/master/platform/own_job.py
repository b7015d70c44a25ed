"""The job of a master in a pod, from its Job.

The API server has what the pod does not know of itself: its image and its volumes. The command line
reads the same object by the same function. Nobody can change a Job's pod template while it is not
suspended, so all masters of a job read the same.
"""

from __future__ import annotations

import asyncio

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.gang_discovery import find_gang
from elasticdl.cluster.kubernetes.plans import Gang, Json, Owner
from elasticdl.cluster.kubernetes.pods import uid
from elasticdl.cluster.kubernetes.submitted_job import refuse_template, spec_of
from elasticdl.errors import ClusterRefused, ExitCode, TransientError
from elasticdl.job import JobSpec
from elasticdl.master.platform.kubernetes_resources import heard

_LIMIT_S = 180.0
"""Then the pod restarts."""
_AGAIN_S = 1.0


async def own_job(
    api: ApiServer, owner: Owner, joined: str | None = None
) -> tuple[JobSpec, Gang | None]:
    """Read and validate the job, and find out how the cluster schedules its gang, if it has one.

    `joined`: see `find_gang`.

    Raises:
        SpecError: a flag is wrong or missing, or the pod template cannot run a master.
        ClusterRefused: the Job is gone, the master may not read it, or the cluster has no gangs.
        TransientError: the API server did not answer for three minutes.
    """
    try:
        async with asyncio.timeout(_LIMIT_S):
            submitted = await heard(lambda: _read(api, owner), _AGAIN_S)
            spec = spec_of(submitted)
            refuse_template(submitted)
            return spec, await heard(lambda: find_gang(api, spec, joined), _AGAIN_S)
    except TimeoutError as error:
        raise TransientError(
            f"could not read the Job {owner.job} within {_LIMIT_S:g} s",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error


async def _read(api: ApiServer, owner: Owner) -> Json:
    job = await api.get(f"/apis/batch/v1/namespaces/{owner.namespace}/jobs/{owner.job}")
    if uid(job) != owner.uid:
        raise ClusterRefused(f"the Job {owner.job} of this pod was deleted")
    return job
