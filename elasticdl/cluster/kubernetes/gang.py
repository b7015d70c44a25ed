"""The gang of a job: its servers and MIN workers, which get nodes together or not at all. Pure.

A PodGroup says how many they are, and each of their pods names it. Several projects have PodGroups.
They differ in the group of their API, in the name of one field, and in how a pod names its group.
Workers beyond MIN are outside of the gang and come one by one.
"""

from __future__ import annotations

from typing import assert_never

from elasticdl.cluster.kubernetes.plans import Gang, GangApi, Json
from elasticdl.job import JobSpec

POD_GROUPS = "podgroups"
VOLCANO_SCHEDULER = "volcano"
_VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"
_PLUGINS_LABEL = "scheduling.x-k8s.io/pod-group"


def gang_size(spec: JobSpec) -> int:
    """The pods of a job's gang: all servers and MIN workers; 0 without --gang."""
    return spec.gang_workers and spec.servers + spec.gang_workers


def pod_group_spec(gang: Gang, size: int, priority_class: str) -> Json:
    """What is below `spec` of a PodGroup. All of its pods have nodes, or none gets one.

    `priority_class` may be ''.
    """
    priority = {"priorityClassName": priority_class} if priority_class else {}
    match gang.api:
        case GangApi.KUBERNETES:
            return {"schedulingPolicy": {"gang": {"minCount": size}}, **priority}
        case GangApi.VOLCANO:
            return {"minMember": size, **priority}
        case GangApi.SCHEDULER_PLUGINS:
            return {"minMember": size}
        case _:
            assert_never(gang.api)


def join(pod: Json, gang: Gang, group: str) -> None:
    """Make a pod a member of the PodGroup of this name."""
    match gang.api:
        case GangApi.KUBERNETES:
            pod["spec"]["schedulingGroup"] = {"podGroupName": group}
        case GangApi.VOLCANO:
            pod["metadata"]["annotations"][_VOLCANO_ANNOTATION] = group
        case GangApi.SCHEDULER_PLUGINS:
            pod["metadata"]["labels"][_PLUGINS_LABEL] = group
        case _:
            assert_never(gang.api)
