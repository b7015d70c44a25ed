"""Memory limits of processes, by role.

The limit of a role grows when one of its processes runs out of memory, up to the job's limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.job import JobSpec


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """The initial and the maximum memory of a process of one role."""

    first_bytes: int
    limit_bytes: int


def policies(spec: JobSpec) -> dict[Role, MemoryPolicy]:
    """The policy of each role whose memory is limited; without a limit, more would not help."""
    by_role = {}
    for role in (Role.WORKER, Role.PS):
        first, limit = (
            spec.kubernetes.memory_limit_bytes(role),
            spec.kubernetes.oom_limit_bytes(role),
        )
        if first is not None and limit is not None:
            by_role[role] = MemoryPolicy(first, limit)
    return by_role


@final
class MemoryLimits:
    """The current limit of each role: what was too little for one process is not tried again."""

    def __init__(self, policies: Mapping[Role, MemoryPolicy]) -> None:
        self._policies = dict(policies)
        self._raised: dict[Role, int] = {}

    def of(self, role: Role) -> int | None:
        """The memory that a process of that role gets now; None: no limit."""
        policy = self._policies.get(role)
        return self._raised.get(role, policy.first_bytes if policy else None)

    def raised(self, role: Role) -> int | None:
        """The raised memory of that role; None: use the job's spec."""
        return self._raised.get(role)

    def limit(self, role: Role) -> int | None:
        """The most memory that a process of that role may get."""
        policy = self._policies.get(role)
        return policy.limit_bytes if policy else None

    def answer(self, role: Role, had_bytes: int | None) -> int | None:
        """Raise the memory of a role after a process with `had_bytes` ran out of it.

        Returns the new memory, half as much again; None if it cannot grow.
        """
        policy = self._policies.get(role)
        if policy is None or had_bytes is None:
            return None
        grown = min(policy.limit_bytes, had_bytes + had_bytes // 2)
        if grown <= had_bytes:
            return None
        # A process with an older, lower limit may end later: never lower the limit of its role
        # again.
        self._raised[role] = max(grown, self._raised.get(role, 0))
        return self._raised[role]
