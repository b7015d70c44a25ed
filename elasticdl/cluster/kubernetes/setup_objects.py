"""What a cluster needs for jobs that share it: the priority ladder, roles, and quotas. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.cluster.kubernetes.rights import (
    CHECKING,
    GANGS,
    LOOKING_AFTER,
    NEEDED,
    SUBMITTING,
    Right,
    Rights,
)
from elasticdl.cluster.priority_ladder import (
    GUARANTEED_CLASS,
    MASTER_CLASS,
    LadderClass,
    ladder_classes,
)

USER_ROLE, READER_ROLE, QUOTA = "elasticdl-user", "elasticdl-reader", "elasticdl-guaranteed"
ACCOUNT = "elasticdl"
_READING: Rights = (Right("list", "priorityclasses", "to see the ladder", "scheduling.k8s.io"),)
_RBAC = "rbac.authorization.k8s.io"


def cluster_objects() -> tuple[Json, ...]:
    """Objects that belong to no namespace: the ladder, and the roles of users."""
    return (
        *(_priority_class(ladder_class) for ladder_class in ladder_classes()),
        _role("ClusterRole", READER_ROLE, _READING),
        {
            **_head(f"{_RBAC}/v1", "ClusterRoleBinding", READER_ROLE),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": READER_ROLE},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": "system:authenticated"}],
        },
        _role("ClusterRole", USER_ROLE, (*SUBMITTING, *LOOKING_AFTER, *CHECKING)),
    )


def namespace_objects(namespace: str, guaranteed_pods: int | None = None) -> tuple[Json, ...]:
    """The account of masters, as in docker/rbac.yaml; '' leaves the namespace to the creator.

    `guaranteed_pods` limits the pods that no other job preempts: masters, servers, MIN workers.
    """
    account: Json = _head("v1", "ServiceAccount", ACCOUNT, namespace)
    binding = {
        **_head(f"{_RBAC}/v1", "RoleBinding", ACCOUNT, namespace),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": ACCOUNT},
        "subjects": [
            {"kind": "ServiceAccount", "name": ACCOUNT}
            | ({"namespace": namespace} if namespace else {})
        ],
    }
    quota = [] if guaranteed_pods is None else [guaranteed_quota(namespace, guaranteed_pods)]
    return (account, _role("Role", ACCOUNT, NEEDED + GANGS, namespace), binding, *quota)


def guaranteed_quota(namespace: str, pods: int) -> Json:
    """A quota of pods in the classes above the rungs; workers on rungs stay unlimited."""
    return {
        **_head("v1", "ResourceQuota", QUOTA, namespace),
        "spec": {
            "hard": {"pods": str(pods)},
            "scopeSelector": {
                "matchExpressions": [
                    {
                        "scopeName": "PriorityClass",
                        "operator": "In",
                        "values": [MASTER_CLASS, GUARANTEED_CLASS],
                    }
                ]
            },
        },
    }


def _priority_class(ladder_class: LadderClass) -> Json:
    return {
        **_head("scheduling.k8s.io/v1", "PriorityClass", ladder_class.name),
        "value": ladder_class.value,
        "preemptionPolicy": "PreemptLowerPriority",
        "description": ladder_class.description,
    }


def _head(version: str, kind: str, name: str, namespace: str = "") -> Json:
    within = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **within}}


def _role(kind: str, name: str, rights: Iterable[Right], namespace: str = "") -> Json:
    return {**_head(f"{_RBAC}/v1", kind, name, namespace), "rules": _rules(rights)}


def _rules(rights: Iterable[Right]) -> list[Json]:
    """One rule for each resource, in the order of the rights."""

    def of(right: Right) -> tuple[str, str]:
        return right.group, right.resource

    unique = {(right.group, right.resource, right.verb): right for right in rights}
    order = list(dict.fromkeys(of(right) for right in unique.values()))
    ordered = sorted(unique.values(), key=lambda right: order.index(of(right)))
    return [
        {
            "apiGroups": [str(group)],
            "resources": [resource],
            "verbs": [right.verb for right in of_resource],
        }
        for (group, resource), of_resource in groupby(ordered, key=of)
    ]
