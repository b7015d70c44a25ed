"""What a job requests from Kubernetes, as plain values; `job_objects.py` makes objects of them.

Quantities, selectors, tolerations and volume sources have Kubernetes's own syntax and travel
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, final

from elasticdl.cluster.base import Role

Json: TypeAlias = dict[str, Any]

_CPU_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


@final
@dataclass(frozen=True, slots=True)
class Image:
    """The common image of all roles; `pull_secrets` are Secrets in the job's namespace."""

    name: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Resources:
    """A process's `requests` and `limits`: `{"cpu": "500m", "memory": "2Gi"}`."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores(self) -> float | None:
        """Cores that the process may count on; None if they are not set.

        Raises ValueError for an invalid quantity.
        """
        text = self.limits.get("cpu") or self.requests.get("cpu")
        return None if text is None else _cores(text)


def _cores(quantity: str) -> float:
    parts = re.fullmatch(r"(\d+\.?\d*)([num]?)", quantity)
    cores = float(parts[1]) * _CPU_SUFFIXES[parts[2]] if parts else 0.0
    if cores <= 0:
        raise ValueError(
            f"invalid number of cores {quantity!r}: expected for example 2, 0.5 or 500m"
        )
    return cores


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod may run.

    `affinity`, if given, replaces the default (workers near their servers, servers apart).
    """

    priority_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] | None = None
    scheduler: str = ""
    """The name of the scheduler; '' for the cluster's own."""
    hub: Role = Role.PS
    """The role that workers exchange gradients with: servers, or on a ring other workers."""


class GangApi(StrEnum):
    """The scheduler of a gang, named by the API group of its PodGroup."""

    KUBERNETES = "scheduling.k8s.io"
    VOLCANO = "scheduling.volcano.sh"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io"


@final
@dataclass(frozen=True, slots=True)
class Gang:
    """How the cluster schedules gangs."""

    api: GangApi
    version: str
    """Of the API: `v1beta1`."""


@final
@dataclass(frozen=True, slots=True)
class Volume:
    """A Kubernetes volume source (`{"persistentVolumeClaim": {...}}`), and where it is mounted."""

    name: str
    source: Mapping[str, Any]
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a pod's process; None leaves it to the image or to the namespace's rules.

    `group` owns the files of mounted volumes, so that a process without root can write there.
    """

    service_account: str = ""
    user: int | None = None
    group: int | None = None


@final
@dataclass(frozen=True, slots=True)
class PodPlan:
    """Everything that the pods of one role share.

    `grace_s` is the time that a pod has to drain at a preemption, an eviction or `kubectl delete`.
    """

    image: Image
    resources: Resources = field(default_factory=Resources)
    placement: Placement = field(default_factory=Placement)
    identity: Identity = field(default_factory=Identity)
    volumes: tuple[Volume, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: int = 30
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels; none of them is one that this package sets."""
    gang: Gang | None = None
    """The gang that the pod belongs to; None: it is scheduled alone."""


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """The `batch/v1` Job that owns all objects of a job; they are deleted with it."""

    namespace: str
    job: str
    uid: str


MASTER_FAILURES = 6
"""How often in a row a master may end soon after its start. Kubernetes waits in between."""


@final
@dataclass(frozen=True, slots=True)
class JobPlan:
    """The Job with its master's pod.

    `failures` limits how often the master may fail before it has run for a while; later ends do not
    count.
    If the namespace is empty, the creator of the Job sets it.
    """

    namespace: str
    name: str
    master: PodPlan
    failures: int = MASTER_FAILURES
    ttl_s: int = 24 * 3600
    args: tuple[str, ...] = ()
    """The job's flags: the args of the master's container."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """More annotations of the master's pod."""
    page_secret: str | None = None
    """The Secret with the status page's certificate."""


MASTER_PORT = 50001
RENDEZVOUS_PORT = 50002
STATUS_PORT = 50003
