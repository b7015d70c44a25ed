"""The rights that a job's master needs, and whether the cluster grants them.

docker/rbac.yaml grants exactly these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.gang import POD_GROUPS
from elasticdl.cluster.kubernetes.plans import Gang, GangApi, Json

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_REVIEWS_OF_OTHERS = "/apis/authorization.k8s.io/v1/namespaces/{}/localsubjectaccessreviews"
Rights: TypeAlias = "tuple[Right, ...]"
_AGAIN_S = 0.5


@final
@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A verb on a resource of an API group; `why` is its purpose."""

    verb: str
    resource: str
    why: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


NEEDED: Rights = (
    Right("create", "pods", "to start workers and parameter servers"),
    Right("get", "pods", "to recognise its own pod after an interrupted request"),
    Right("list", "pods", "to see which of its processes exist"),
    Right("watch", "pods", "to learn at once how a process ended"),
    Right("delete", "pods", "to stop processes"),
    Right("patch", "pods", "so that the end of its own pod does not count against the job"),
    Right("get", "pods/log", "to show the last output of a process"),
    Right("create", "services", "to give its processes names"),
    Right("get", "services", "to recognise its own ones after a restart"),
    Right("create", "secrets", "to keep the job's tokens"),
    Right("get", "jobs", "to read how many of its pods the job has counted as failed", "batch"),
    Right("patch", "jobs", "to end the job at once when it has failed", "batch"),
    Right("create", "leases", "so that only one master acts", "coordination.k8s.io"),
    Right("get", "leases", "to see whether another master acts", "coordination.k8s.io"),
    Right("update", "leases", "to show that it acts", "coordination.k8s.io"),
    Right("create", "networkpolicies", "to keep others out", "networking.k8s.io"),
    Right(
        "get",
        "networkpolicies",
        "to recognise its own one after a restart",
        "networking.k8s.io",
    ),
)

GANGS: Rights = tuple(
    Right(verb, POD_GROUPS, why, group)
    for group in GangApi
    for verb, why in (
        ("create", "to schedule the job's gang"),
        ("get", "to recognise its own one after a restart"),
    )
)
"""What the master of a job with --gang needs, too: those of the API that the cluster has."""
SUBMITTING: Rights = (Right("create", "jobs", "to submit the job", "batch"),)
LOOKING_AFTER: Rights = (
    Right("get", "jobs", "for every verb", "batch"),
    Right("list", "jobs", "for `list`", "batch"),
    Right("delete", "jobs", "for `stop` of a job without a master", "batch"),
    Right("list", "pods", "for every verb"),
    Right("get", "pods/log", "for `logs`"),
    Right("get", "secrets", "for the job's token: `status`, `stop`, `scale`, `checkpoint`"),
    Right("get", "pods/portforward", "to talk to the job's master"),
    Right("create", "pods/portforward", "to talk to the job's master, from Kubernetes 1.35 on"),
)
"""Rights of a user who manages a job from outside the cluster."""
CHECKING: Rights = (
    Right("create", "pods", "to ask before submission what the cluster would refuse"),
    Right("list", "resourcequotas", "for `check`"),
    Right("get", "persistentvolumeclaims", "for `check`"),
    Right("get", "serviceaccounts", "for `check`"),
    Right("list", "events", "to show why a master cannot start"),
    Right(
        "create",
        "localsubjectaccessreviews",
        "to check the master's rights",
        "authorization.k8s.io",
    ),
)
"""Rights with which a submission and `check` find out more."""


def needed_by(gang: Gang | None) -> Rights:
    """The rights that the master of a job with or without a gang needs."""
    return NEEDED + tuple(right for right in GANGS if gang is not None and right.group == gang.api)


async def missing(
    api: ApiServer, namespace: str, needed: Rights = NEEDED, account: str = ""
) -> Rights:
    """The rights that the user, or a service account, lacks. Raises ApiRefused, ApiAway."""
    answers = await asyncio.gather(*(_allowed(api, namespace, right, account) for right in needed))
    return tuple(right for right, allowed in zip(needed, answers, strict=True) if not allowed)


async def missing_of(
    api: ApiServer, namespace: str, account: str, needed: Rights = NEEDED
) -> Rights | None:
    """The rights that a service account lacks; None if the user may not ask.

    Raises ApiRefused, ApiAway.
    """
    try:
        return await missing(api, namespace, needed, account)
    except ApiRefused as refused:
        if refused.status.code == 403:
            return None
        raise


async def lasting(ask: Callable[[], Awaitable[Rights | None]], limit_s: float) -> Rights | None:
    """The rights that `ask` still reports as missing after `limit_s`.

    An API server learns of a new role a moment later. `ask` is one of the functions above; its
    errors pass.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while (lacking := await ask()) and loop.time() < end_s:
        await asyncio.sleep(_AGAIN_S)
    return lacking


def in_words(lacking: Rights, namespace: str) -> str:
    """A sentence about missing rights, for people."""
    parts = "; ".join(f"{right} ({right.why})" for right in lacking)
    return (
        f"not allowed in namespace {namespace}: {parts}. docker/rbac.yaml grants what a job needs"
    )


async def _allowed(api: ApiServer, namespace: str, right: Right, account: str = "") -> bool:
    resource, _, part = right.resource.partition("/")
    attributes = {
        "namespace": namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": part,
    }
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    if account:
        review["kind"] = "LocalSubjectAccessReview"
        review["metadata"] = {"namespace": namespace}
        review["spec"]["user"] = f"system:serviceaccount:{namespace}:{account}"
        review["spec"]["groups"] = [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ]
    reviewed = await api.create(
        _REVIEWS_OF_OTHERS.format(namespace) if account else _REVIEWS, review
    )
    return bool((reviewed.get("status") or {}).get("allowed"))
