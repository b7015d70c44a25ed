"""What the jobs of a cluster have, want and wait for, from its objects. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias, final

from elasticdl.cluster.base import Role
from elasticdl.cluster.kubernetes.job_state import JobState, job_state, wall_s
from elasticdl.cluster.kubernetes.pods import has_ended, process_name, trouble
from elasticdl.kubernetes_flags import quantity

Amounts: TypeAlias = Mapping[str, Decimal]
Object: TypeAlias = Mapping[str, Any]
_NO_TOTALS: Amounts = {}


@final
@dataclass(frozen=True, slots=True)
class JobUsage:
    """One job that has not ended. Workers and servers `placed` have a node; `pending` wait for one.

    `share` is the largest share that its placed pods have of any resource; None if the cluster's
    nodes are unknown.
    """

    namespace: str
    name: str
    state: str
    weight: int
    minimum: int
    maximum: int
    workers: int
    pending: int
    servers: int
    wished_servers: int
    most_servers: int
    share: float | None
    age_s: float
    waiting_s: float
    """How long its longest waiting pod waits for a node; without a master's pod, the job's age."""
    waits_for: str


@final
@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """All jobs, the largest share first, and what they and all other pods request of the nodes.

    `utilisation`, by resource, is the requested share of what ready nodes offer. It is empty if
    nodes or pods are unknown.
    """

    jobs: tuple[JobUsage, ...]
    allocatable: Amounts = field(default_factory=dict)
    utilisation: Mapping[str, float] = field(default_factory=dict)
    of_jobs: Mapping[str, float] = field(default_factory=dict)
    """The same of the jobs' pods alone."""

    def as_document(self) -> dict[str, Any]:
        """For JSON and YAML."""
        return {
            "jobs": [asdict(job) for job in self.jobs],
            "allocatable": {key: float(amount) for key, amount in self.allocatable.items()},
            "utilisation": dict(self.utilisation),
            "of_jobs": dict(self.of_jobs),
        }


def cluster_usage(
    jobs: Iterable[Object],
    pods: Sequence[Object],
    nodes: Iterable[Object] | None,
    every_pod: Iterable[Object] | None,
    now_wall_s: float,
) -> ClusterUsage:
    """`pods` are those of the jobs. None: the user may not list these objects."""
    by_job: dict[str, list[Object]] = {}
    for pod in pods:
        for owner in pod["metadata"].get("ownerReferences") or ():
            by_job.setdefault(str(owner.get("uid")), []).append(pod)
    allocatable = _NO_TOTALS if nodes is None else _allocatable(nodes)
    states = [job_state(job, by_job.get(str(job["metadata"]["uid"]), ())) for job in jobs]
    live = [state for state in states if state.ended is None]
    ours = [pod for state in live for pod in (*state.masters, *state.pods)]
    used = {} if every_pod is None else _shares(_requested(every_pod), allocatable)
    return ClusterUsage(
        tuple(
            sorted(
                (_job_usage(state, allocatable, now_wall_s) for state in live),
                key=lambda job: (-(job.share or 0.0), -job.workers, job.namespace, job.name),
            )
        ),
        allocatable,
        used,
        _shares(_requested(ours), allocatable),
    )


def _job_usage(state: JobState, allocatable: Amounts, now_wall_s: float) -> JobUsage:
    pods = [pod for pod in (*state.masters, *state.pods) if not has_ended(pod)]
    placed = Counter(process_name(pod).role for pod in pods if _has_node(pod))
    waiting = [pod for pod in pods if not _has_node(pod)]
    shares = _shares(_requested(pods), allocatable).values()
    spec, age_s = state.spec, max(0.0, now_wall_s - state.created_wall_s)
    waits_s = [max(0.0, now_wall_s - _created_wall_s(pod)) for pod in waiting]
    waits_s += [] if state.masters else [age_s]
    waits_for = state.waits_for
    if not waits_for and waiting:
        waits_for = trouble(min(waiting, key=_created_wall_s)).text
    workers = None if spec is None else spec.cluster.num_workers
    return JobUsage(
        state.namespace,
        state.name,
        str(state.standing),
        1 if spec is None else spec.kubernetes.weight,
        0 if workers is None else workers.low,
        0 if workers is None else workers.high,
        placed[Role.WORKER],
        sum(process_name(pod).role is Role.WORKER for pod in waiting),
        placed[Role.PS],
        0 if spec is None else spec.servers,
        0 if spec is None else spec.cluster.num_ps_pods.high,
        max(shares, default=0.0) if allocatable else None,
        age_s,
        max(waits_s, default=0.0),
        waits_for,
    )


def _created_wall_s(pod: Object) -> float:
    return wall_s(pod["metadata"].get("creationTimestamp"))


def _has_node(pod: Object) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def _requested(pods: Iterable[Object]) -> Amounts:
    """What pods on nodes request in sum, as the scheduler counts it without init containers."""
    total: dict[str, Decimal] = {}
    for pod in pods:
        if not _has_node(pod) or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        amounts = [
            (container.get("resources") or {}).get("requests") or {}
            for container in pod["spec"].get("containers") or ()
        ]
        for key, text in [
            ("pods", "1"),
            *(item for part in amounts for item in part.items()),
        ]:
            total[key] = total.get(key, Decimal(0)) + quantity(str(text))
    return total


def _allocatable(nodes: Iterable[Object]) -> Amounts:
    """The sum over nodes that are ready and take pods."""
    total: dict[str, Decimal] = {}
    for node in nodes:
        status = node.get("status") or {}
        ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or ()
        )
        if not ready or (node.get("spec") or {}).get("unschedulable"):
            continue
        for key, text in (status.get("allocatable") or {}).items():
            total[key] = total.get(key, Decimal(0)) + quantity(str(text))
    return total


def _shares(amounts: Amounts, allocatable: Amounts) -> dict[str, float]:
    """Shares by resource, except the number of pods, which is a limit of nodes."""
    return {
        key: float(amounts.get(key, Decimal(0)) / offered)
        for key, offered in sorted(allocatable.items())
        if offered > 0 and key != "pods"
    }
