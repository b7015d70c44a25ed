"""What can be known to stand in a job's way on a cluster before it is submitted.

Asks only; makes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from elasticdl.cluster.base import Role
from elasticdl.cluster.findings import Finding, Findings, Weight
from elasticdl.cluster.kubernetes import rights
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.planning import job_object, pod_objects, pod_plan
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.cluster.kubernetes.rights import Right
from elasticdl.job import JobSpec
from elasticdl.kubernetes_section import IMAGE, quantity

SUBMITTING = (Right("create", "jobs", "to submit the job", "batch"),)
LOOKING_AFTER = (
    Right("get", "jobs", "for every verb", "batch"),
    Right("list", "jobs", "for `list`", "batch"),
    Right("delete", "jobs", "for `stop` of a job without a master", "batch"),
    Right("list", "pods", "for every verb"),
    Right("get", "pods/log", "for `logs`"),
    Right("get", "secrets", "for the job's token: `status`, `stop`, `scale`, `checkpoint`"),
    Right("get", "pods/portforward", "to talk to the job's master"),
    Right("create", "pods/portforward", "to talk to the job's master, from Kubernetes 1.35 on"),
)
"""What whoever looks after a job from outside the cluster needs."""


async def look(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    """Everything, in the order in which it is best told.

    `spec` has a name and a directory. Raises ApiAway, ApiRefused.
    """
    parts = await asyncio.gather(
        _name(api, spec, namespace),
        _own_rights(api, namespace),
        _account(api, spec, namespace),
        _pods(api, spec, namespace),
        _quotas(api, spec, namespace),
        _priorities(api, spec),
        _claims(api, spec, namespace),
        _pull_secrets(api, spec, namespace),
    )
    return [finding for part in (*parts, [image(spec.kubernetes.image_name)]) for finding in part]


def image(name: str) -> Finding:
    """Whether its name can be one. Whether it is there, only a node can tell."""
    if not IMAGE.fullmatch(name):
        return Finding(
            "image",
            Weight.PROBLEM,
            f"{name!r} is no name of an image; expected REGISTRY/NAME:TAG in small letters",
        )
    pinned = (
        ""
        if "@" in name or ":" in name.rpartition("/")[2]
        else "; it has no tag: what `latest` is may change while the job runs"
    )
    weight = Weight.WARNING if pinned else Weight.FINE
    return Finding(
        "image", weight, f"{name} is a name; whether it can be pulled is seen on a node{pinned}"
    )


async def _name(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    name = spec.cluster.job_name
    if await _object(api, f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}") not in (
        None,
        _HIDDEN,
    ):
        return [
            Finding(
                "name", Weight.PROBLEM, f"there is a job {name} already in namespace {namespace}"
            )
        ]
    return [Finding("name", Weight.FINE, f"{name} in namespace {namespace}")]


async def _own_rights(api: ApiServer, namespace: str) -> Findings:
    lacking = await rights.missing(api, namespace, SUBMITTING + LOOKING_AFTER)
    found = [
        Finding(
            "rights",
            Weight.PROBLEM if right in SUBMITTING else Weight.WARNING,
            f"you may not {right} ({right.why})",
        )
        for right in lacking
    ]
    return found or [Finding("rights", Weight.FINE, "you may submit jobs and look after them")]


async def _account(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    account = spec.kubernetes.service_account or "default"
    where = f"service account {account}"
    if await _object(api, f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}") is None:
        grant = f"kubectl -n {namespace} apply -f docker/rbac.yaml makes one"
        return [
            Finding(
                "account", Weight.PROBLEM, f"there is no {where} in namespace {namespace}; {grant}"
            )
        ]
    lacking = await rights.missing_of(api, namespace, account)
    if lacking is None:
        return [
            Finding(
                "account",
                Weight.WARNING,
                f"you may not ask what {where} may do; docker/rbac.yaml has what it needs",
            )
        ]
    words = "; ".join(f"{right} ({right.why})" for right in lacking)
    if lacking:
        return [
            Finding(
                "account", Weight.PROBLEM, f"{where} may not {words}; docker/rbac.yaml grants it"
            )
        ]
    return [Finding("account", Weight.FINE, f"{where} may do all that the master does")]


async def _pods(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    """Server-side dry runs: pod security, webhooks, quota and limits answer as they would later."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    titles = ("the master's pod", "a worker's pod", "a server's pod")
    found: Findings = []
    for title, made in zip(titles, pod_objects(spec, namespace), strict=True):
        try:
            await api.create(path, made, dry_run=True)
        except ApiRefused as refused:
            if "cannot create resource" in refused.message:
                return [
                    Finding(
                        "pods",
                        Weight.WARNING,
                        "you may not create pods, not even to try: the job's master will tell",
                    )
                ]
            if refused.status.reason != "AlreadyExists":
                said = refusal(refused.status.code, refused.message)
                weight = Weight.WARNING if said.retry else Weight.PROBLEM
                found.append(
                    Finding("pods", weight, f"the cluster would not take {title}: {said.reason}")
                )
    if not found:
        try:
            await api.create(
                f"/apis/batch/v1/namespaces/{namespace}/jobs",
                job_object(spec, namespace),
                dry_run=True,
            )
        except ApiRefused as refused:
            if (
                refused.status.reason != "AlreadyExists"
                and "cannot create resource" not in refused.message
            ):
                said = refusal(refused.status.code, refused.message)
                found.append(
                    Finding(
                        "pods", Weight.PROBLEM, f"the cluster would not take the job: {said.reason}"
                    )
                )
    return found or [
        Finding(
            "pods",
            Weight.FINE,
            "the cluster would take a pod of each role (pod security, webhooks, limits)",
        )
    ]


async def _quotas(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    try:
        answer = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas")
    except ApiRefused:
        return [
            Finding(
                "quota", Weight.WARNING, f"you may not read the quotas of namespace {namespace}"
            )
        ]
    low, high = spec.cluster.num_workers.low, spec.cluster.num_workers.high
    found = [
        finding
        for quota in answer.get("items") or ()
        for finding in judged(quota, needs(spec, low), needs(spec, high))
    ]
    return found or [
        Finding(
            "quota",
            Weight.FINE,
            "there is room for all processes" if answer.get("items") else "there is none",
        )
    ]


def needs(spec: JobSpec, workers: int) -> dict[str, Decimal]:
    """What a job with so many workers takes of each thing that a quota can bound."""
    total: dict[str, Decimal] = {
        "count/jobs.batch": Decimal(1),
        "services": Decimal(2),
        "secrets": Decimal(1),
    }
    for role, count in (
        (Role.MASTER, 1),
        (Role.WORKER, workers),
        (Role.PS, spec.cluster.num_ps_pods),
    ):
        resources = pod_plan(spec, role).resources
        amounts: dict[str, Decimal] = {"pods": Decimal(1), "count/pods": Decimal(1)}
        for key, text in {**resources.limits, **resources.requests}.items():
            amounts[f"requests.{key}"] = amounts[key] = quantity(text)
        amounts |= {f"limits.{key}": quantity(text) for key, text in resources.limits.items()}
        for key, amount in amounts.items():
            total[key] = total.get(key, Decimal(0)) + count * amount
    return total


def judged(
    quota: Mapping[str, Any], least: Mapping[str, Decimal], most: Mapping[str, Decimal]
) -> Findings:
    """What a ResourceQuota says to a job that takes `least` to begin and `most` with all its
    workers.
    """
    wanted = quota.get("spec") or {}
    if wanted.get("scopes") or wanted.get("scopeSelector"):
        return []  # bounds some pods only: the dry runs tell
    name, status = quota["metadata"]["name"], quota.get("status") or {}
    # The status follows a moment after what was asked for: it has what is used.
    hard, used = wanted.get("hard") or {}, status.get("used") or {}
    found: Findings = []
    for key in sorted(set(hard) & set(most)):
        limit, taken = quantity(hard[key]), quantity(used.get(key, "0"))
        counted = (
            f"{used[key]} of {hard[key]} used"
            if key in used
            else f"{hard[key]} in all, not counted yet"
        )
        state = f"quota {name}: {key} {counted}"
        if least[key] > limit:
            found.append(
                Finding(
                    "quota",
                    Weight.PROBLEM,
                    f"{state}; the job needs {_amount(key, least[key])} to begin, which is never"
                    " there",
                )
            )
        elif taken + least[key] > limit:
            found.append(
                Finding(
                    "quota",
                    Weight.WARNING,
                    f"{state}; the job needs {_amount(key, least[key])} to begin: it would wait",
                )
            )
        elif taken + most[key] > limit:
            found.append(
                Finding(
                    "quota",
                    Weight.WARNING,
                    f"{state}; all of the job takes {_amount(key, most[key])}: it would run with"
                    " fewer workers",
                )
            )
    return found


def _amount(key: str, amount: Decimal) -> str:
    if "memory" in key or "storage" in key:
        return f"{amount / 2**20:.0f}Mi"
    return f"{amount.normalize():f}"


async def _priorities(api: ApiServer, spec: JobSpec) -> Findings:
    names = sorted({pod_plan(spec, role).placement.priority_class for role in Role} - {""})
    found: Findings = []
    for name in names:
        if await _object(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") is None:
            found.append(
                Finding(
                    "priority",
                    Weight.PROBLEM,
                    f"there is no priority class {name}; see `kubectl get priorityclasses`",
                )
            )
    return found or [
        Finding(
            "priority", Weight.FINE, f"priority classes: {', '.join(names) or 'none is asked for'}"
        )
    ]


async def _claims(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    found: Findings = []
    for name in dict.fromkeys(
        mount.claim_name for mount in spec.kubernetes.volume if mount.claim_name
    ):
        claim = await _object(api, f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
        found.append(_claim(name, claim, namespace))
    return found or [Finding("volumes", Weight.FINE, "no volume claim is asked for")]


def _claim(name: str, claim: Json | None, namespace: str) -> Finding:
    if claim is None:
        return Finding(
            "volumes",
            Weight.PROBLEM,
            f"there is no volume claim {name} in namespace {namespace}; see `kubectl get pvc`",
        )
    if claim is _HIDDEN:
        return Finding("volumes", Weight.WARNING, f"you may not look at volume claim {name}")
    phase = str((claim.get("status") or {}).get("phase") or "Pending")
    if phase == "Lost":
        return Finding("volumes", Weight.PROBLEM, f"volume claim {name} has lost its volume")
    if set((claim.get("spec") or {}).get("accessModes") or ()) <= {
        "ReadWriteOnce",
        "ReadWriteOncePod",
    }:
        return Finding(
            "volumes",
            Weight.WARNING,
            f"volume claim {name} is for one node only: all processes would have to be there",
        )
    waits = "; it is not bound yet" if phase == "Pending" else ""
    return Finding(
        "volumes", Weight.WARNING if waits else Weight.FINE, f"volume claim {name} is there{waits}"
    )


async def _pull_secrets(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    return [
        Finding(
            "image",
            Weight.PROBLEM,
            f"there is no secret {name} in namespace {namespace}, which --image-pull-secrets names",
        )
        for name in spec.kubernetes.image_pull_secrets
        if await _object(api, f"/api/v1/namespaces/{namespace}/secrets/{name}") is None
    ]


_HIDDEN: Json = {}


async def _object(api: ApiServer, path: str) -> Json | None:
    """None if it is not there, `_HIDDEN` if we may not look. Raises ApiAway, ApiRefused."""
    try:
        return await api.get(path)
    except ApiRefused as refused:
        if refused.status.code == 404:
            return None
        if refused.status.code == 403:
            return _HIDDEN
        raise
