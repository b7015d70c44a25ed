"""Find out how a cluster schedules gangs: which PodGroups it has."""

from __future__ import annotations

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.gang import POD_GROUPS, VOLCANO_SCHEDULER
from elasticdl.cluster.kubernetes.plans import Gang, GangApi
from elasticdl.errors import ClusterRefused
from elasticdl.job import JobSpec

_INSTALL = (
    "the cluster's administrator turns on Kubernetes's own (from 1.36: the feature gate"
    " GenericWorkload, in 1.36 also GangScheduling, and the API scheduling.k8s.io), or installs"
    " Volcano, or scheduler-plugins, whose scheduler --scheduler-name has to name; without --gang"
    " the job runs here"
)


async def find_gang(api: ApiServer, spec: JobSpec, joined: str | None = None) -> Gang | None:
    """How the job's gang is scheduled here; None for a job without one.

    `joined` is the API whose PodGroup the job's pods name already: it comes first if it is there.
    Only the API's discovery is read, which everybody may. Raises ClusterRefused if the cluster has
    no PodGroups that the job's scheduler knows, ApiAway, ApiRefused.
    """
    if not spec.gang_workers:
        return None
    groups = {entry["name"]: entry for entry in (await api.get("/apis")).get("groups") or ()}
    known = _known_to(spec.kubernetes.scheduler_name)
    for group in sorted(known, key=lambda group: group != joined):
        for version in (groups.get(group) or {}).get("versions") or ():
            listing = await api.get(f"/apis/{version['groupVersion']}")
            if any(resource["name"] == POD_GROUPS for resource in listing.get("resources") or ()):
                return Gang(group, str(version["version"]))
    name = spec.kubernetes.scheduler_name
    there = [str(group) for group in GangApi if group in groups and group != GangApi.KUBERNETES]
    has = f"; it has {' and '.join(there)} for other schedulers" if there else ""
    whose = f" that the scheduler {name} knows" if name else ""
    raise ClusterRefused(
        f"--gang needs PodGroups{whose}, and the cluster has none{has}", hint=_INSTALL
    )


def _known_to(scheduler: str) -> tuple[GangApi, ...]:
    """The PodGroups that a scheduler may know, the preferred ones first; '': none is named.

    Nothing in the API tells which scheduler has the plugin of scheduler-plugins, so it has to be
    named. Volcano has a name of its own.
    """
    if not scheduler:
        return GangApi.KUBERNETES, GangApi.VOLCANO
    if scheduler == VOLCANO_SCHEDULER:
        return (GangApi.VOLCANO,)
    return GangApi.KUBERNETES, GangApi.SCHEDULER_PLUGINS
