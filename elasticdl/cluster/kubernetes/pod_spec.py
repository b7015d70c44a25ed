"""The `spec` of a pod: its process's environment, placement and restrictions. Pure.

Pods meet the restricted Pod Security standard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from elasticdl.cluster.base import ProcessSpec, Role
from elasticdl.cluster.kubernetes.labels import JOB_LABEL, ROLE_LABEL, selector
from elasticdl.cluster.kubernetes.plans import Json, Placement, PodPlan
from elasticdl.cluster.role_environment import GRACE, IN_PLACE, KEPT_MEMORY

CONTAINER = "process"
_MEMORY_FOLDER = "/var/lib/elasticdl-memory"
_KEPT = {KEPT_MEMORY: f"{_MEMORY_FOLDER}/server", IN_PLACE: "1"}
_NODE_GONE_AFTER_S = {Role.MASTER: 20, Role.WORKER: 30, Role.PS: 30}
"""Kubernetes keeps the pods of a silent node for 5 min by default, which is too long for a job.

The master goes first: the next one then sees to the others.
"""

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NODE, _RACK, _ZONE = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
)
"""Labels of nodes. Kubernetes defines none for racks; its documentation uses this one."""
_NEAR_SERVERS = {_RACK: 100, _ZONE: 100}
_NEAR_HUB = {_NODE: 50, **_NEAR_SERVERS}
"""How much a pod prefers a place, from 1 to 100: the network matters more than the node."""
_OTHER_JOBS = 5
"""So little that it decides only where the first server of a job goes."""


def pod_spec(job: str, plan: PodPlan, spec: ProcessSpec, args: Sequence[str] = ()) -> Json:
    """Everything below `spec`. The only container is called `process`; `args` are its args."""
    role, placement = spec.name.role, plan.placement
    body: Json = {
        "containers": [_container(plan, spec, args)],
        # The next process of a killed server finds its memory in the pod.
        "restartPolicy": "OnFailure" if role is Role.PS else "Never",
        "hostname": f"{role}-{spec.name.index}",
        "subdomain": job,
        "terminationGracePeriodSeconds": plan.grace_s,
        "automountServiceAccountToken": role is Role.MASTER,
        # A namespace may have hundreds of Services; pods need no variables for them.
        "enableServiceLinks": False,
        # With this the process is not PID 1: signals have their default actions, and orphans are
        # reaped.
        "shareProcessNamespace": True,
        "securityContext": _pod_security(plan),
        "tolerations": [
            *map(dict, placement.tolerations),
            *_lost_node_tolerations(role, placement),
        ],
        **_affinity(job, role, placement),
        "volumes": [],
    }
    optional = {
        "serviceAccountName": plan.identity.service_account,
        "priorityClassName": placement.priority_class,
        "schedulerName": placement.scheduler,
        "nodeSelector": dict(placement.node_selector),
        "imagePullSecrets": [{"name": secret} for secret in plan.image.pull_secrets],
    }
    body.update({key: value for key, value in optional.items() if value})
    mount(body, "tmp", {"emptyDir": {}}, "/tmp", read_only=False)  # noqa: S108 - its own, in the pod
    if role is Role.PS:
        limit = body["containers"][0].get("resources", {}).get("limits", {}).get("memory")
        kept: Json = {"medium": "Memory", **({"sizeLimit": limit} if limit else {})}
        mount(body, "memory", {"emptyDir": kept}, _MEMORY_FOLDER, read_only=False)
    _mount_volumes(body, plan)
    return body


def _mount_volumes(body: Json, plan: PodPlan) -> None:
    """Mount the volumes; one may be mounted at several places."""
    sources = {volume.name: {"name": volume.name, **volume.source} for volume in plan.volumes}
    body["volumes"] += sources.values()
    for volume in plan.volumes:
        place = _place(volume.name, volume.mount_path, read_only=volume.read_only)
        body["containers"][0]["volumeMounts"].append(
            place | ({"subPath": volume.sub_path} if volume.sub_path else {})
        )


def _place(name: str, path: str, *, read_only: bool) -> Json:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def mount(body: Json, name: str, source: Json, path: str, *, read_only: bool) -> None:
    """Add an internal volume to a pod's `spec` and to its container."""
    body["volumes"].append({"name": name, **source})
    body["containers"][0]["volumeMounts"].append(_place(name, path, read_only=read_only))


def from_field(name: str, path: str) -> Json:
    """An environment variable with the value of a pod's field."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _container(plan: PodPlan, spec: ProcessSpec, args: Sequence[str]) -> Json:
    grown = {} if spec.memory_bytes is None else {"memory": str(spec.memory_bytes)}
    amounts = {
        "requests": {**plan.resources.requests, **grown},
        "limits": {**plan.resources.limits, **grown},
    }
    resources = {key: value for key, value in amounts.items() if value}
    return {
        "name": CONTAINER,
        "image": plan.image.name,
        "imagePullPolicy": plan.image.pull_policy,
        "command": [_verbatim(part) for part in spec.command],
        **({"args": [_verbatim(part) for part in args]} if args else {}),
        "env": _environment(plan, spec),
        **({"resources": resources} if resources else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The last output of a failed process becomes part of the pod's status, readable without a
        # right to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [],
    }


def _environment(plan: PodPlan, spec: ProcessSpec) -> list[Json]:
    cores = plan.resources.cores
    threads = str(max(1, math.ceil(spec.cores if cores is None else cores)))
    trains = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "ELASTICDL_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": threads,
    }
    plain = {
        "HOME": "/tmp",  # noqa: S108 - its own, in the pod
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        **({} if spec.name.role is Role.MASTER else trains),
        **plan.env,
        **spec.env,
        **(_KEPT if spec.name.role is Role.PS else {}),
        **({GRACE: str(plan.grace_s)} if spec.name.role is Role.WORKER else {}),
    }
    own = from_field("ELASTICDL_POD_ADDRESS", "status.podIP")
    return [
        own,
        *(
            {"name": key, "value": _verbatim(value)}
            for key, value in plain.items()
            if key not in spec.secrets
        ),
    ]


def _verbatim(text: str) -> str:
    """Escape `$`: Kubernetes would expand `$(NAME)` and turn `$$` into `$`."""
    return text.replace("$", "$$")


def _pod_security(plan: PodPlan) -> Json:
    context: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if plan.identity.user is not None:
        context["runAsUser"] = plan.identity.user
    if plan.identity.group is not None:
        context |= {"fsGroup": plan.identity.group, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def _lost_node_tolerations(role: Role, placement: Placement) -> list[Json]:
    """How long a pod stays on a lost node, unless the user configures it."""
    tolerated = {toleration.get("key") for toleration in placement.tolerations}
    return [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _NODE_GONE_AFTER_S[role],
        }
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if key not in tolerated
    ]


def _affinity(job: str, role: Role, placement: Placement) -> Json:
    """Prefer workers near their servers, or near each other on a ring.

    Every worker needs all servers, so these are in one rack, and each on a node of its own: a lost
    node costs only one. The rack is one that other jobs leave to the workers.
    """
    if placement.affinity is not None:
        return {"affinity": dict(placement.affinity)} if placement.affinity else {}
    match role:
        case Role.WORKER:
            affinity = {"podAffinity": _preferred(job, placement.hub, _NEAR_HUB)}
        case Role.PS:
            near = _preferred(job, Role.PS, _NEAR_SERVERS)
            apart = _preferred(job, Role.PS, {_NODE: 100})
            apart[_PREFERRED].append({"weight": _OTHER_JOBS, "podAffinityTerm": _other_jobs(job)})
            affinity = {"podAffinity": near, "podAntiAffinity": apart}
        case Role.MASTER:
            return {}
    # Without a constraint the scheduler would spread the pods of a Service, as a job's are. This
    # one counts no pods, as it has no selector.
    spread = {"maxSkew": 1, "topologyKey": _NODE, "whenUnsatisfiable": "ScheduleAnyway"}
    return {"affinity": affinity, "topologySpreadConstraints": [spread]}


def _preferred(job: str, role: Role, weights: Mapping[str, int]) -> Json:
    """Preferences by the key of nodes, for those where pods of this role are."""

    def near(key: str) -> Json:
        pods = {"matchLabels": {**selector(job), ROLE_LABEL: str(role)}}
        return {"topologyKey": key, "labelSelector": pods}

    return {
        _PREFERRED: [
            {"weight": weight, "podAffinityTerm": near(key)} for key, weight in weights.items()
        ]
    }


def _other_jobs(job: str) -> Json:
    """The racks where servers of other jobs of the namespace are."""
    servers = {**selector(job), ROLE_LABEL: str(Role.PS)}
    del servers[JOB_LABEL]
    others = {"key": JOB_LABEL, "operator": "NotIn", "values": [job]}
    return {
        "topologyKey": _RACK,
        "labelSelector": {"matchLabels": servers, "matchExpressions": [others]},
    }
