"""Check, before a job is submitted, what would prevent it from running on a cluster.

It only asks and creates nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from elasticdl.cluster.base import Role
from elasticdl.cluster.findings import Finding, Findings, fine, problem, warning
from elasticdl.cluster.kubernetes import rights
from elasticdl.cluster.kubernetes.api_refusals import no_priority_class, refusal
from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.gang import gang_size
from elasticdl.cluster.kubernetes.gang_discovery import find_gang
from elasticdl.cluster.kubernetes.ladder_use import CLASSES, settle_ladder
from elasticdl.cluster.kubernetes.planning import job_object, pod_objects, pod_plan
from elasticdl.cluster.kubernetes.plans import Gang, Json
from elasticdl.cluster.kubernetes.rights import LOOKING_AFTER, SUBMITTING
from elasticdl.cluster.priority_ladder import classes_of
from elasticdl.errors import ClusterRefused
from elasticdl.job import JobSpec
from elasticdl.kubernetes_flags import IMAGE, quantity

_FEW = 3


async def look(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    """All findings, in display order.

    `spec` has a name and a directory. Raises ApiAway, ApiRefused.
    """
    spec, no_ladder = await settle_ladder(api, spec, namespace)
    gang, gangs = await _gang(api, spec)
    parts = await asyncio.gather(
        _name(api, spec, namespace),
        _own_rights(api, namespace),
        _account(api, spec, namespace, gang),
        _pods(api, spec, namespace),
        _quotas(api, spec, namespace),
        _priorities(api, spec, no_ladder),
        _claims(api, spec, namespace),
        _secrets(api, spec, namespace),
    )
    return [
        finding for part in (*parts, gangs, [image(spec.kubernetes.image_name)]) for finding in part
    ]


def image(name: str) -> Finding:
    """Whether the image name is valid; only a node can find out whether the image exists."""
    if not IMAGE.fullmatch(name):
        return problem(
            "image", f"invalid image name {name!r}; expected REGISTRY/NAME:TAG in lower case"
        )
    text = f"{name} is a valid name; only a node can check the pull"
    if "@" in name or ":" in name.rpartition("/")[2]:
        return fine("image", text)
    return warning("image", f"{text}; without a tag, `latest` may change while the job runs")


async def _name(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    name = spec.cluster.job_name
    if await _object(api, f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}") not in (
        None,
        _HIDDEN,
    ):
        return [problem("name", f"job {name} already exists in namespace {namespace}")]
    return [fine("name", f"{name} in namespace {namespace}")]


async def _own_rights(api: ApiServer, namespace: str) -> Findings:
    lacking = await rights.missing(api, namespace, SUBMITTING + LOOKING_AFTER)
    findings = [
        (problem if right in SUBMITTING else warning)(
            "rights", f"you may not {right} ({right.why})"
        )
        for right in lacking
    ]
    return findings or [fine("rights", "you may submit and manage jobs")]


async def _gang(api: ApiServer, spec: JobSpec) -> tuple[Gang | None, Findings]:
    try:
        gang = await find_gang(api, spec)
    except ClusterRefused as refused:
        return None, [problem("gang", f"{refused.message}: {refused.hint}")]
    if gang is None:
        return None, []
    text = f"{gang_size(spec)} pods start together, by the PodGroups of {gang.api}/{gang.version}"
    return gang, [fine("gang", text)]


async def _account(api: ApiServer, spec: JobSpec, namespace: str, gang: Gang | None) -> Findings:
    account = spec.kubernetes.service_account or "default"
    where = f"service account {account}"
    if await _object(api, f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}") is None:
        grant = f"create it: kubectl -n {namespace} apply -f docker/rbac.yaml"
        return [problem("account", f"there is no {where} in namespace {namespace}; {grant}")]
    lacking = await rights.missing_of(api, namespace, account, rights.needed_by(gang))
    if lacking is None:
        return [
            warning(
                "account",
                f"you may not check what {where} may do; docker/rbac.yaml lists its rights",
            )
        ]
    listed = "; ".join(f"{right} ({right.why})" for right in lacking)
    if lacking:
        return [problem("account", f"{where} may not {listed}; docker/rbac.yaml grants it")]
    return [fine("account", f"{where} has all rights that the master needs")]


async def _pods(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    """Server-side dry runs: pod security, webhooks, quota and limits answer as for a real pod."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    titles = ("the master's pod", "a worker's pod", "a server's pod")
    findings: Findings = []
    for title, pod in zip(titles, pod_objects(spec, namespace), strict=True):
        try:
            await api.create(path, pod, dry_run=True)
        except ApiRefused as refused:
            if "cannot create resource" in refused.message:
                return [
                    warning(
                        "pods",
                        "you may not create pods, even as a dry run; only the job's"
                        " master can find out",
                    )
                ]
            if refused.status.reason != "AlreadyExists":
                rejection = refusal(refused.status.code, refused.message)
                judge = warning if rejection.retry else problem
                findings.append(
                    judge("pods", f"the cluster would refuse {title}: {rejection.reason}")
                )
    if not findings:
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
                rejection = refusal(refused.status.code, refused.message)
                findings.append(
                    problem("pods", f"the cluster would refuse the job: {rejection.reason}")
                )
    return findings or [
        fine("pods", "the cluster would accept a pod of each role (pod security, webhooks, limits)")
    ]


async def _quotas(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    try:
        answer = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas")
    except ApiRefused:
        return [warning("quota", f"you may not read the quotas of namespace {namespace}")]
    workers, servers = spec.cluster.num_workers, spec.cluster.num_ps_pods
    least, most = needs(spec, workers.low, servers.low), needs(spec, workers.high, servers.high)
    findings = [
        finding for quota in answer.get("items") or () for finding in judged(quota, least, most)
    ]
    return findings or [
        fine("quota", "there is room for all processes" if answer.get("items") else "no quota")
    ]


def needs(spec: JobSpec, workers: int, servers: int) -> dict[str, Decimal]:
    """What a job with so many workers and servers uses of each resource that a quota can limit."""
    total: dict[str, Decimal] = {
        "count/jobs.batch": Decimal(1),
        "services": Decimal(2),
        "secrets": Decimal(1),
    }
    for role, count in (
        (Role.MASTER, 1),
        (Role.WORKER, workers),
        (Role.PS, servers),
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
    """Findings for a job that uses `least` to start and `most` with all its processes."""
    wanted = quota.get("spec") or {}
    if wanted.get("scopes") or wanted.get("scopeSelector"):
        return []  # limits only some pods, so the dry runs check it
    name, status = quota["metadata"]["name"], quota.get("status") or {}
    # Limits come from the spec, since the status lags behind; usage is only in the status.
    hard, used = wanted.get("hard") or {}, status.get("used") or {}
    findings: Findings = []
    for key in sorted(set(hard) & set(most)):
        limit, taken = quantity(hard[key]), quantity(used.get(key, "0"))
        counted = (
            f"{used[key]} of {hard[key]} used"
            if key in used
            else f"limit {hard[key]}, usage not counted yet"
        )
        state = f"quota {name}: {key} {counted}"
        if least[key] > limit:
            findings.append(
                problem(
                    "quota",
                    f"{state}; the job needs {_amount(key, least[key])} to start, which exceeds the"
                    " quota",
                )
            )
        elif taken + least[key] > limit:
            findings.append(
                warning(
                    "quota",
                    f"{state}; the job needs {_amount(key, least[key])} to start, so it would wait",
                )
            )
        elif taken + most[key] > limit:
            findings.append(
                warning(
                    "quota",
                    f"{state}; with all workers the job needs {_amount(key, most[key])}, so it"
                    " would run with fewer",
                )
            )
    return findings


def _amount(key: str, amount: Decimal) -> str:
    if "memory" in key or "storage" in key:
        return f"{amount / 2**20:.0f}Mi"
    return f"{amount.normalize():f}"


async def _priorities(api: ApiServer, spec: JobSpec, no_ladder: str) -> Findings:
    names = classes_of(spec)
    findings = [warning("priority", no_ladder)] if no_ladder else []
    existing = await _priority_classes(api)
    findings += [
        problem("priority", no_priority_class(name))
        for name in names
        if existing is not None and name not in existing
    ]
    named = ", ".join(names) if len(names) <= _FEW else f"{names[0]} to {names[-1]}"
    return findings or [fine("priority", f"priority classes: {named or 'none requested'}")]


async def _priority_classes(api: ApiServer) -> frozenset[str] | None:
    """The names of all; None without the right to list them. Raises ApiAway, ApiRefused."""
    try:
        answer = await api.get(CLASSES)
    except ApiRefused as refused:
        if refused.status.code == 403:
            return None
        raise
    return frozenset(str(item["metadata"]["name"]) for item in answer.get("items") or ())


async def _claims(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    findings: Findings = []
    for name in dict.fromkeys(
        mount.claim_name for mount in spec.kubernetes.volume if mount.claim_name
    ):
        claim = await _object(api, f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
        findings.append(_claim(name, claim, namespace))
    return findings or [fine("volumes", "no volume claim requested")]


def _claim(name: str, claim: Json | None, namespace: str) -> Finding:
    if claim is None:
        return problem(
            "volumes",
            f"there is no volume claim {name} in namespace {namespace}; see `kubectl get pvc`",
        )
    if claim is _HIDDEN:
        return warning("volumes", f"you may not read volume claim {name}")
    phase = str((claim.get("status") or {}).get("phase") or "Pending")
    if phase == "Lost":
        return problem("volumes", f"volume claim {name} has lost its volume")
    if set((claim.get("spec") or {}).get("accessModes") or ()) <= {
        "ReadWriteOnce",
        "ReadWriteOncePod",
    }:
        return warning(
            "volumes",
            f"volume claim {name} is for a single node, so all processes would have to run there",
        )
    waits = ", but is not bound yet" if phase == "Pending" else ""
    return (warning if waits else fine)("volumes", f"volume claim {name} exists{waits}")


async def _secrets(api: ApiServer, spec: JobSpec, namespace: str) -> Findings:
    """Whether the Secrets that the user named exist, as far as the user may see that."""
    flags = dict.fromkeys(spec.kubernetes.image_pull_secrets, "--image-pull-secrets")
    if spec.page_secret is not None:
        flags[spec.page_secret] = "--tls"
    secrets = {
        name: await _object(api, f"/api/v1/namespaces/{namespace}/secrets/{name}") for name in flags
    }
    findings = [
        problem(
            "image" if flag == "--image-pull-secrets" else "tls",
            f"there is no secret {name} in namespace {namespace}, which {flag} names",
        )
        for name, flag in flags.items()
        if secrets[name] is None
    ]
    page = secrets.get(spec.page_secret or "")
    if page and not {"tls.crt", "tls.key"} <= (page.get("data") or {}).keys():
        text = f"secret {spec.page_secret} has no tls.crt and tls.key, which --tls needs"
        findings.append(problem("tls", text))
    return findings


_HIDDEN: Json = {}


async def _object(api: ApiServer, path: str) -> Json | None:
    """The object; None if it does not exist, `_HIDDEN` without the right to read it.

    Raises ApiAway, ApiRefused.
    """
    try:
        return await api.find(path)
    except ApiRefused as refused:
        if refused.status.code == 403:
            return _HIDDEN
        raise
