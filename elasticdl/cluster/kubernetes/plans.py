"""What a job asks of Kubernetes, as plain values: `manifests.py` makes objects of them.

Quantities, selectors, tolerations and volume sources are Kubernetes' own words and travel
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from elasticdl.errors import ExitCode

Json: TypeAlias = dict[str, Any]

_CPU_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


@final
@dataclass(frozen=True, slots=True)
class Image:
    """The one image of all roles. `pull_secrets` are names of Secrets in the job's namespace."""

    name: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Resources:
    """What a process asks for (`requests`) and may not go beyond (`limits`): `{"cpu": "500m",
    "memory": "2Gi"}`.
    """

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores(self) -> float | None:
        """Cores that the process may count on; None if nothing is said of them.

        Raises ValueError for a quantity that is none.
        """
        text = self.limits.get("cpu") or self.requests.get("cpu")
        return None if text is None else _cores(text)


def _cores(quantity: str) -> float:
    parts = re.fullmatch(r"(\d+\.?\d*)([num]?)", quantity)
    cores = float(parts[1]) * _CPU_SUFFIXES[parts[2]] if parts else 0.0
    if cores <= 0:
        raise ValueError(
            f"{quantity!r} is no quantity of cores: expected for example 2, 0.5 or 500m"
        )
    return cores


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod may be put.

    `affinity`, where given, replaces ours (workers near their servers, servers apart).
    """

    priority_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] | None = None


@final
@dataclass(frozen=True, slots=True)
class Volume:
    """A volume source in Kubernetes' own words (`{"persistentVolumeClaim": {"claimName":
    "data"}}`), and where it is mounted.
    """

    name: str
    source: Mapping[str, Any]
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """As whom a pod's process runs. None leaves it to the image or to the namespace's rules.

    `group` owns the files of mounted volumes, so that a process that is not root can write there.
    """

    service_account: str = ""
    user: int | None = None
    group: int | None = None


@final
@dataclass(frozen=True, slots=True)
class PodPlan:
    """All that the pods of one role have in common.

    `grace_s` is the time a pod has to drain when somebody else ends it: preemption, eviction,
    `kubectl delete`.
    """

    image: Image
    resources: Resources = field(default_factory=Resources)
    placement: Placement = field(default_factory=Placement)
    identity: Identity = field(default_factory=Identity)
    volumes: tuple[Volume, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: int = 30


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """The `batch/v1` Job that everything of a job belongs to. It goes, they go."""

    namespace: str
    job: str
    uid: str


FINAL_EXIT_CODES = (1, 2, 3, 4, 5, 124, 130)


@final
@dataclass(frozen=True, slots=True)
class JobPlan:
    """The Job with its master's pod.

    `relaunches` bounds how often a master that fails (not: that is preempted or evicted) is started
    again; the exit codes
    in `final_exit_codes` are its verdict and are never retried; `left_exit_code` says that it left
    in order, to be started
    again at no cost. An empty namespace is left to whoever creates the Job.
    """

    namespace: str
    name: str
    master: PodPlan
    relaunches: int = 20
    final_exit_codes: tuple[int, ...] = FINAL_EXIT_CODES
    left_exit_code: int = int(ExitCode.DRAINED)
    ttl_s: int = 24 * 3600
    suspended: bool = False


MASTER_PORT = 50001
RENDEZVOUS_PORT = 50002
STATUS_PORT = 50003
