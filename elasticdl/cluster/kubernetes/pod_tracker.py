"""Track a job's pods and derive process events: pods in, events out.

It only decides; `cluster.py` acts. A pod is identified by its uid, a process by its name. Each end
is reported once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from elasticdl.clock import Clock
from elasticdl.cluster.base import ExitStatus, ProcessExited, ProcessName, ProcessObserved
from elasticdl.cluster.event_bus import EventBus
from elasticdl.cluster.kubernetes.labels import CHECK, ROLE_LABEL
from elasticdl.cluster.kubernetes.pods import (
    DELETED,
    NOT_PLACED,
    Nomination,
    Pod,
    Trouble,
    containers_ended,
    exit_status,
    has_ended,
    keeps_ending,
    lived_s,
    newest_end,
    observed,
    place,
    restarts,
    restarts_in_place,
    trouble,
    uid,
)

_LOG = logging.getLogger(__name__)
START_PROBLEM_LIMIT_S = 40.0
"""How long an image may be unavailable, or a container impossible to create.

After that, the registry's or node's message is reported as the end of the process.
"""
NOMINATED_LIMIT_S = 360.0
"""How long a pod may wait on the node that the scheduler chose for it.

Longer than the scheduler waits until it tries pods again: 5 minutes, looked at every 30 s.
"""
OVERDUE_S = 30.0
"""A node ends a pod within its grace and a little more; after that it is considered lost."""
FORCE_AFTER_S = 3.0
NODE_LOST = "NodeLost"
_AT_ONCE_S, _MOST_AT_ONCE = 10.0, 3
"""So many containers in a row that end so soon cannot serve: a new pod takes their place."""
_SOON_S, _MOST_SOON = 600.0, 6
"""A node starts the sixth container in a row after 160 s if none lived for ten minutes."""


@dataclass(slots=True)
class Life:
    """A pod that has not ended. Times are the clock's; None if not applicable."""

    pod: Pod
    name: ProcessName
    """The process that runs in it, or that its node is about to start in it."""
    asked: bool = False
    containers: int = 0
    """How many containers of the pod have ended, and were followed by others."""
    at_once: int = 0
    soon: int = 0
    """How many in a row ended soon after their starts: see `_MOST_AT_ONCE`, `_MOST_SOON`."""
    abandoned: bool = False
    """The pod is being given up since its containers keep ending."""
    in_trouble_since_s: float | None = None
    trouble: Trouble | None = None
    """The problem with the longest message: between retries a node says less than the registry."""
    nomination: Nomination = field(default_factory=Nomination)
    given_up: Trouble | None = None
    """Why the pod is being given up: it is not placed, or its container cannot be started."""
    vanished: bool = False
    """The pod is gone, and its end was not observed."""
    gone_at_s: float | None = None
    """When a pod that is being deleted should have gone."""
    due_s: float = float("inf")
    """The earliest requested end."""
    force_at_s: float | None = None
    """When to force the deletion, since the node does not learn of the earlier end."""

    @property
    def not_placed(self) -> bool:
        """Whether the pod is being given up because the scheduler does not place it."""
        return self.given_up is not None and self.given_up.lasting == NOT_PLACED

    def exit_status(self) -> ExitStatus:
        """How it ended, with what only this process knows."""
        status = exit_status(self.pod, asked=self.asked, ended=self._end())
        # A node may report the end of a container that never ran, without code and signal.
        nothing_known = status.exit_code is None and status.signal is None
        if self.given_up is not None and nothing_known:
            return replace(
                status, reason=self.given_up.lasting, log_tail=self.given_up.text, asked=False
            )
        if (
            self.vanished
            and nothing_known
            and not (status.reason or status.conditions or status.asked)
        ):
            # Controllers give a reason, and pods do not vanish by themselves: a user deleted it.
            return replace(status, reason=DELETED)
        return status

    def observed(self) -> ProcessObserved:
        """The observation of the process, in whichever container of the pod it is."""
        seen = observed(self.pod)
        if not restarts_in_place(self.pod):
            return seen
        running = seen.running and restarts(self.pod) == self.containers
        waiting_for = seen.waiting_for or ("" if running else "its container starts again")
        return replace(
            seen, name=self.name, running=running, waiting_for=waiting_for, place=place(self.pod)
        )

    def pass_on(self) -> ExitStatus | None:
        """How the process ended, if the next one takes its place in the pod: then it is that one.

        None if it has not ended, or if the pod is to be abandoned.
        """
        ended = containers_ended(self.pod)
        if self.abandoned or self.containers >= ended:
            return None
        # The node reports the last end only, whatever happened before this master looked.
        end = newest_end(self.pod) if self.containers == ended - 1 else {}
        if end and self._gives_up(end):
            self.abandoned = True
            return None
        status = exit_status(self.pod, asked=self.asked, ended=end)
        self.containers += 1
        self.name = replace(self.name, incarnation=self.name.incarnation + 1)
        return status

    def _gives_up(self, end: Mapping[str, Any]) -> bool:
        seconds = lived_s(end)
        self.at_once = self.at_once + 1 if seconds < _AT_ONCE_S else 0
        self.soon = self.soon + 1 if seconds < _SOON_S else 0
        often = self.at_once >= _MOST_AT_ONCE or self.soon >= _MOST_SOON
        return often or keeps_ending(end)

    def _end(self) -> Mapping[str, Any] | None:
        """The end of the process, from the pod's description; {} if it shows the one before."""
        if self.abandoned:
            return newest_end(self.pod)
        return {} if self.containers > restarts(self.pod) else None


@final
class PodTracker:
    """Use it from one event loop.

    It publishes observations of live processes. `changed`, `gone` and `lost` return ends.
    """

    def __init__(
        self,
        bus: EventBus,
        clock: Clock,
        overdue_s: float = OVERDUE_S,
        nominated_s: float = NOMINATED_LIMIT_S,
    ) -> None:
        self._bus = bus
        self._clock, self._overdue_s, self._nominated_s = clock, overdue_s, nominated_s
        self._lives: dict[str, Life] = {}
        self._asked: set[ProcessName] = set()
        self._closed: set[str] = set()
        """Uids of pods whose end was returned and that may still exist."""

    def __len__(self) -> int:
        return len(self._lives)

    def life(self, name: ProcessName) -> Life | None:
        """The pod of a process that has not ended."""
        return next((life for life in self._lives.values() if life.name == name), None)

    def follows(self, pod: Pod) -> bool:
        """Whether a pod belongs to a process that has not ended."""
        return uid(pod) in self._lives

    def names(self) -> list[ProcessName]:
        """Processes that have not ended."""
        return [life.name for life in self._lives.values()]

    def lives(self) -> list[Life]:
        """Pods of processes that have not ended."""
        return list(self._lives.values())

    def ask(self, name: ProcessName, grace_s: float) -> None:
        """Record that the job itself ends the process.

        A node that has begun to end a pod keeps to the first grace (kubernetes/kubernetes#83916).
        If a later request shortens it, the pod's deletion is forced, and its process ends with the
        first grace.
        """
        self._asked.add(name)
        if (life := self.life(name)) is None:
            return
        due_s = self._clock.now_s() + grace_s
        if life.asked and due_s < life.due_s:
            life.force_at_s = due_s + FORCE_AFTER_S
        life.asked, life.due_s = True, min(life.due_s, due_s)

    def changed(self, pod: Pod) -> Life | None:
        """Take in a pod's state. Returns its life if it has just ended, to be reported."""
        identity = uid(pod)
        # A watch may repeat the last state of a pod after a new list.
        if identity in self._closed:
            return None
        life = self._lives.get(identity)
        if life is None:
            try:
                name = place(pod)
            except (KeyError, ValueError):
                if (pod["metadata"].get("labels") or {}).get(ROLE_LABEL) == CHECK:
                    return None
                _LOG.warning(
                    "pod %s has this job's label, but is not one of its processes",
                    pod["metadata"].get("name"),
                )
                return None
            # The end may have been requested before the first event about the pod.
            life = self._lives[identity] = Life(pod, name, asked=name in self._asked)
        life.pod = pod
        if restarts_in_place(pod):
            self._pass_on(life)
        if life.abandoned or has_ended(pod):
            self._closed.add(identity)
            return self._lives.pop(identity)
        self._watch_over(life)
        self._tell(life)
        return None

    def gone(self, pod: Pod) -> Life | None:
        """A pod is gone. Returns its life if its end was not reported yet."""
        ended = self.changed(pod)
        self._closed.discard(uid(pod))
        if ended is None and (ended := self._lives.pop(uid(pod), None)) is not None:
            ended.vanished = True
        return ended

    def hopeless(self) -> list[Life]:
        """Pods to give up: their image or container was unavailable for too long, or the scheduler
        did not place them where it made room for them.

        Each once, unless the tracker is to `wait_again`.
        """
        now_s = self._clock.now_s()
        waiting = [
            life
            for life in self._lives.values()
            if life.given_up is None
            and (life.in_trouble_since_s is not None or (life.nomination.node and not life.asked))
        ]
        for life in waiting:
            if life.in_trouble_since_s is None:
                life.given_up = life.nomination.trouble(now_s, self._nominated_s)
            elif now_s > life.in_trouble_since_s + START_PROBLEM_LIMIT_S:
                life.given_up = life.trouble
        return [life for life in waiting if life.given_up is not None]

    def wait_again(self, life: Life) -> None:
        """Give a pod that was not placed, and could not be deleted, as much time again."""
        life.given_up, life.nomination.since_s = None, self._clock.now_s()

    def overstaying(self) -> list[Life]:
        """Pods whose deletion to force; each once."""
        now_s = self._clock.now_s()
        overdue = [
            life
            for life in self._lives.values()
            if life.force_at_s is not None and now_s > life.force_at_s
        ]
        for life in overdue:
            life.force_at_s = None
        return overdue

    def lost(self) -> list[Life]:
        """Pods that are long overdue: their node does not answer. They are no longer tracked."""
        now_s = self._clock.now_s()
        overdue = [
            key
            for key, life in self._lives.items()
            if life.gone_at_s is not None and now_s > life.gone_at_s + self._overdue_s
        ]
        self._closed.update(overdue)
        return [self._lives.pop(key) for key in overdue]

    def tell_again(self, name: ProcessName) -> None:
        """Publish the state of a process once more, if it has not ended."""
        if (life := self.life(name)) is not None:
            self._bus.post(life.observed())

    def _pass_on(self, life: Life) -> None:
        """Publish the ends of containers that others follow."""
        while not (has_ended(life.pod) and life.containers >= restarts(life.pod)):
            name = life.name
            if (status := life.pass_on()) is None:
                return
            self._bus.post(ProcessExited(name, status))

    def _watch_over(self, life: Life) -> None:
        now_s, metadata = self._clock.now_s(), life.pod["metadata"]
        problem = trouble(life.pod)
        if observed(life.pod).running or not problem.lasting:
            life.in_trouble_since_s = life.trouble = None
        else:
            life.in_trouble_since_s = (
                now_s if life.in_trouble_since_s is None else life.in_trouble_since_s
            )
            life.trouble = max(
                (known for known in (life.trouble, problem) if known),
                key=lambda known: len(known.text),
            )
        life.nomination.look(life.pod, now_s)
        if not life.nomination.node and life.not_placed:
            life.given_up = None
        if "deletionTimestamp" in metadata:
            due_s = now_s + float(metadata.get("deletionGracePeriodSeconds") or 0)
            # Every event repeats the deletion; only the first one says when it began.
            life.gone_at_s = due_s if life.gone_at_s is None else min(life.gone_at_s, due_s)

    def _tell(self, life: Life) -> None:
        event = life.observed()
        newest = self._bus.newest(life.name)
        if isinstance(newest, ProcessExited) or newest == event:
            return
        # A container that was running cannot return to waiting; its end follows as an event of its
        # own.
        if isinstance(newest, ProcessObserved) and newest.running and not event.running:
            return
        self._bus.post(event)
