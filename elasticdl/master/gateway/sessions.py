"""Which processes are attached, which of two claimants owns a name, and which are silent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import DropCause, drops_in
from elasticdl.flag_values import MOST_STALENESS
from elasticdl.master.core.presence import AttachedProcess
from elasticdl.master.gateway.heartbeats import (
    HEARTBEAT_S,
    SILENCE_S,
    SILENT_PERIODS,
    STARTING_SILENCE_S,
)
from elasticdl.time_use import GAUGE_PREFIX, spent_in

_LONGEST_STEP_S = 2.0
_STARVED_STEP_S = 0.5
"""Silence to count for an overlong time step.

A suspended or starved master has not read its messages, and must not blame the senders. Only this
much of a late step counts.
"""

_NEWEST = 0.2
"""Weight of the newest report in the mean share of CPU time."""
_CHANGED = 1.5


@dataclass(slots=True)
class Session:
    """An attached process."""

    instance: str
    heard_s: float = 0.0
    """When it was last heard of, by the time that `Sessions` counts."""
    heartbeat_s: float = HEARTBEAT_S
    """The longest period that it may go by: what it was told last."""
    streams: bool | None = None
    """Whether it has a stream of orders; None: it has had none yet."""
    starting: bool = False
    """Whether it has yet to import and build what it needs."""
    control_address: str = ""
    """Where it serves a master; '' if it does not, or not yet."""
    announced: bool = False
    """Whether the core knows of it."""
    reports: int = 0
    """The number of its last counted report."""
    version: int = 0
    gauges: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    """The highest memory use that it reported."""

    staleness_limit: float | None = None
    """Its newest limit that the core knows."""
    dropped: dict[DropCause, int] = field(default_factory=dict)
    """Its dropped messages so far, by cause."""
    cpu_share: float = 1.0
    """Its mean share of the CPU time that it asks for; newer reports count more."""
    told_share: float = 1.0
    """The share that the core knows of."""
    spent_s: dict[str, float] = field(default_factory=dict)
    """A worker's newest account of its time that the core does not know yet, if any."""

    @property
    def limit_s(self) -> float:
        """The silence after which it is given up."""
        usual_s = SILENCE_S if self.streams is False else SILENT_PERIODS * self.heartbeat_s
        return max(usual_s, STARTING_SILENCE_S) if self.starting else usual_s

    def reported(self, gauges: Mapping[str, float]) -> dict[DropCause, int]:
        """Store its newest gauges; return the messages dropped since the previous report."""
        self.gauges = {
            name: value for name, value in gauges.items() if not name.startswith(GAUGE_PREFIX)
        }
        self.spent_s = spent_in(gauges) or self.spent_s
        self.peak_bytes = max(self.peak_bytes, int(gauges.get("rss_bytes", 0)))
        before, self.dropped = self.dropped, drops_in(gauges)
        new = {cause: count - before.get(cause, 0) for cause, count in self.dropped.items()}
        return {cause: count for cause, count in new.items() if count > 0}

    def staleness_choice(self) -> tuple[int, float] | None:
        """Return a worker's new limit of staleness and its reason; see `StalenessChosen`."""
        limit, share = self.gauges.get("staleness_limit"), self.gauges.get("exchange_share")
        if limit is None or share is None or limit == self.staleness_limit:
            return None
        if not (0 <= limit <= MOST_STALENESS and math.isfinite(share)):
            return None
        self.staleness_limit = limit
        return int(limit), share

    def cpu_share_changed(self) -> float | None:
        """Return its mean share of CPU time if it changed by much; see `CpuShareReported`."""
        share = self.gauges.get("cpu_share")
        if share is None or not 0.0 <= share <= 1.0:
            return None
        self.cpu_share += _NEWEST * (share - self.cpu_share)
        low, high = sorted((max(self.cpu_share, 0.01), self.told_share))
        if high < _CHANGED * low:
            return None
        self.told_share = max(self.cpu_share, 0.01)
        return round(self.told_share, 3)


@final
class Sessions:
    """Attached processes by name.

    A name that has left never returns: the next incarnation has another name.
    """

    def __init__(self) -> None:
        self._present: dict[ProcessName, Session] = {}
        self._servers: dict[ProcessName, Session] = {}
        """Those of parameter servers, which are few among thousands of workers."""
        self._left: dict[ProcessName, str] = {}
        self._passed_s = 0.0
        """Time that counts as silence."""

    def __contains__(self, name: ProcessName) -> bool:
        return name in self._present

    def __iter__(self) -> Iterator[tuple[ProcessName, Session]]:
        return iter(tuple(self._present.items()))

    def servers(self) -> Iterator[tuple[ProcessName, Session]]:
        """Return the attached parameter servers."""
        return iter(tuple(self._servers.items()))

    def refusal(self, name: ProcessName, instance: str) -> str | None:
        """Return why this process may not use `name`, or None if it may."""
        present = self._present.get(name)
        if name in self._left or present is None:
            return self.absence(name)
        if present.instance != instance:
            return f"another process is already attached as {name}"
        return None

    def absence(self, name: ProcessName) -> str:
        """Return how a process that is not attached left, or that it never attached."""
        if name in self._left:
            return f"{name} {self._left[name]}: this process was replaced"
        return f"{name} is not attached"

    def claim(self, name: ProcessName, instance: str) -> Session:
        """Attach a process, or return its session; check `refusal` of a present name first."""
        present = self._present.get(name)
        return present or self._add(name, Session(instance, self._passed_s))

    def restore(self, process: AttachedProcess, version: int) -> None:
        """Expect a process that had attached to an earlier master.

        From now on its silence counts. `version` is the least that a server can have.
        """
        session = Session(
            process.instance,
            self._passed_s,
            starting=process.starting,
            control_address=process.control_address,
            announced=True,
            version=version,
        )
        self._add(process.name, session)

    def _add(self, name: ProcessName, session: Session) -> Session:
        self._present[name] = session
        if name.role is Role.PS:
            self._servers[name] = session
        return session

    def __len__(self) -> int:
        return len(self._present)

    def streams(self, name: ProcessName, *, opened: bool) -> None:
        """Note that the order stream of a process opened, or broke."""
        present = self._present.get(name)
        if present is not None:
            present.streams, present.heard_s = opened, self._passed_s

    def hung_up(self, name: ProcessName) -> bool:
        """Return whether the order stream of an attached process broke, and none came after it."""
        return self._present[name].streams is False

    def leave(self, name: ProcessName, why: str) -> bool:
        """Refuse the process from now on; `why` completes "worker-3 …".

        Returns False if it was not attached.
        """
        if name in self._left:
            return False
        self._left[name] = why
        self._servers.pop(name, None)
        return self._present.pop(name, None) is not None

    def has_left(self, name: ProcessName) -> bool:
        return name in self._left

    def gauges(self, name: ProcessName) -> Mapping[str, float]:
        """Return what a process last measured; nothing of one that is not attached."""
        present = self._present.get(name)
        return present.gauges if present is not None else {}

    def take_spent_s(self, name: ProcessName | None = None) -> dict[str, dict[str, float]]:
        """Return the workers' accounts of their time that were not taken yet, or those of one."""
        taken = {}
        for worker in self._present if name is None else (name,):
            session = self._present.get(worker)
            if session is not None and session.spent_s:
                taken[str(worker)], session.spent_s = session.spent_s, {}
        return taken

    def peak_bytes(self, name: ProcessName) -> int | None:
        """Return the highest memory use that an attached process reported, if any."""
        present = self._present.get(name)
        return (present.peak_bytes or None) if present is not None else None

    def heard(self, name: ProcessName) -> Session | None:
        """Record a call of an attached process."""
        present = self._present.get(name)
        if present is not None:
            present.heard_s = self._passed_s
        return present

    def pass_time(self, elapsed_s: float) -> None:
        self._passed_s += elapsed_s if elapsed_s <= _LONGEST_STEP_S else _STARVED_STEP_S

    def silent(self) -> list[tuple[ProcessName, float]]:
        """Return the processes that are silent beyond their limits, and for how long."""
        # Most have been heard of since: with 10,000 this takes a millisecond. No limit is shorter.
        since_s = self._passed_s - SILENCE_S
        return [
            (name, self._passed_s - present.heard_s)
            for name, present in self._present.items()
            if present.heard_s <= since_s and self._passed_s - present.heard_s >= present.limit_s
        ]
