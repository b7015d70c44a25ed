"""Decide at submission whether a job stands on the cluster's priority ladder."""

from __future__ import annotations

from elasticdl.cluster.base import Role
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.planning import dry_run_pod
from elasticdl.cluster.priority_ladder import classes_of
from elasticdl.job import JobSpec
from elasticdl.kubernetes_flags import LadderUse

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_SHARING = "so the job does not share a full cluster fairly"
_SETUP = "the cluster's administrator installs it with `elasticdl cluster setup`"
_SCOPED = "insufficient quota to match these scopes"
"""An API server says it where a class needs a quota that names it, and the namespace has none."""
_NO_CLASS = "no PriorityClass with name"
_FEW = 3


async def settle_ladder(api: ApiServer, spec: JobSpec, namespace: str) -> tuple[JobSpec, str]:
    """The job with what AUTO comes to on this cluster, and why it is no ladder; else ''.

    Raises ApiAway, ApiRefused.
    """
    if spec.kubernetes.priority_ladder is not LadderUse.AUTO:
        return spec, ""
    on = spec.replace(ladder_found=True)
    if why_not := await _why_not(api, on, namespace):
        return spec, f"{why_not}, {_SHARING}"
    return on, ""


async def _why_not(api: ApiServer, spec: JobSpec, namespace: str) -> str:
    named = classes_of(spec.replace(priority_ladder=LadderUse.OFF))
    needed = [name for name in classes_of(spec) if name not in named]
    if not needed:
        return ""
    try:
        answer = await api.get(CLASSES)
    except ApiRefused as refused:
        if refused.status.code != 403:
            raise
        return await _refused_pod(api, spec, namespace, readable=False)
    existing = {str(item["metadata"]["name"]) for item in answer.get("items") or ()}
    if missing := [name for name in needed if name not in existing]:
        return _missing(missing, whole=not existing & set(needed))
    return await _refused_pod(api, spec, namespace, readable=True)


def _missing(names: list[str], *, whole: bool) -> str:
    if whole:
        return f"the cluster has no priority ladder ({_SETUP})"
    listed = ", ".join(names[:_FEW]) + (", …" if len(names) > _FEW else "")
    return f"the cluster's priority ladder lacks {listed} ({_SETUP})"


async def _refused_pod(api: ApiServer, spec: JobSpec, namespace: str, *, readable: bool) -> str:
    """Why the namespace may not use the classes, by the dry run of a pod on the last rung."""
    pod = dry_run_pod(spec, namespace, Role.WORKER, spec.cluster.num_workers.high)
    try:
        await api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=True)
    except ApiRefused as refused:
        if _NO_CLASS in refused.message:
            return refusal(refused.status.code, refused.message).reason
        if _SCOPED in refused.message:
            return (
                f"namespace {namespace} has no quota for the classes of the priority ladder, which"
                " this cluster requires (see `kubectl describe quota`)"
            )
        if not readable and "cannot create resource" in refused.message:
            return (
                "you may neither read priority classes nor create pods, which would show whether"
                f" the cluster has a priority ladder ({_SETUP})"
            )
    return ""
