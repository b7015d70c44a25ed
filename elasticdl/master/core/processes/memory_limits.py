"""What processes may use: raised for a role when one of it ran out of memory, up to the job's
limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.job import JobSpec


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """What processes of a role get at first, and at most."""

    first_bytes: int
    limit_bytes: int


def policies(spec: JobSpec) -> dict[Role, MemoryPolicy]:
    """Of each role whose memory is limited: where nothing limits it, more would not help."""
    found = {}
    for role in (Role.WORKER, Role.PS):
        first, limit = (
            spec.kubernetes.memory_limit_bytes(role),
            spec.kubernetes.oom_limit_bytes(role),
        )
        if first is not None and limit is not None:
            found[role] = MemoryPolicy(first, limit)
    return found


@final
class MemoryLimits:
    """One role's processes are alike: what was too little for one is not tried with the next."""

    def __init__(self, policies: Mapping[Role, MemoryPolicy]) -> None:
        self._policies = dict(policies)
        self._raised: dict[Role, int] = {}

    def of(self, role: Role) -> int | None:
        """What a process of that role gets now; None: nothing limits it."""
        policy = self._policies.get(role)
        return self._raised.get(role, policy.first_bytes if policy else None)

    def raised(self, role: Role) -> int | None:
        """What is to be ordered instead of what the job's spec says; None: as that says."""
        return self._raised.get(role)

    def limit(self, role: Role) -> int | None:
        """The most that a process of that role may get."""
        policy = self._policies.get(role)
        return policy.limit_bytes if policy else None

    def answer(self, role: Role, had_bytes: int | None) -> int | None:
        """One that had so much ran out of it.

        What the next gets, or None where that would be no more: half as much again.
        """
        policy = self._policies.get(role)
        if policy is None or had_bytes is None:
            return None
        grown = min(policy.limit_bytes, had_bytes + had_bytes // 2)
        if grown <= had_bytes:
            return None
        self._raised[role] = max(grown, self._raised.get(role, 0))
        return self._raised[role]
