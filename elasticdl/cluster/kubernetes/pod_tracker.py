"""What is known of a job's pods, and what that means for its processes: pods in, process events
out.

Decides only; `kubernetes.py` acts. A pod is told by its uid, a process by its name, and each end is
told once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import final

from elasticdl.clock import Clock
from elasticdl.cluster.base import ExitFacts, ProcessExited, ProcessName, ProcessObserved
from elasticdl.cluster.event_bus import EventBus
from elasticdl.cluster.kubernetes.pods import (
    DELETED,
    Pod,
    Trouble,
    exit_facts,
    has_ended,
    observed,
    process_name,
    trouble,
    uid,
)

_LOG = logging.getLogger(__name__)
PATIENCE_S = 40.0
"""A registry may be away for a moment.

After that, its words, or the node's, are told as the end of the process.
"""
OVERDUE_S = 30.0
"""A node ends a pod within its grace and a little more; one that does not is not there."""
FORCE_AFTER_S = 3.0
NODE_LOST = "NodeLost"


@dataclass(slots=True)
class Life:
    """A pod that has not ended. Times are the clock's; None while it is not so."""

    pod: Pod
    name: ProcessName
    asked: bool = False
    in_trouble_since_s: float | None = None
    trouble: Trouble | None = None
    """The one with the most words: between its tries a node says less than what the registry
    said.
    """
    given_up: Trouble | None = None
    """Why, when the pod is being given up: its image, or a container that cannot be made."""
    vanished: bool = False
    """It is there no more, and its end was not told."""
    gone_at_s: float | None = None
    """When a pod that is being deleted should have gone."""
    due_s: float = float("inf")
    """The earliest end that we asked for."""
    force_at_s: float | None = None
    """When to take it off the books, since its node does not know that it is due sooner now."""

    def facts(self) -> ExitFacts:
        """How it ended, with what only we know."""
        facts = exit_facts(self.pod, asked=self.asked)
        # Its node may tell the end of a container that never was: without code and signal.
        nothing_known = facts.exit_code is None and facts.signal is None
        if self.given_up is not None and nothing_known:
            return replace(
                facts, reason=self.given_up.lasting, log_tail=self.given_up.text, asked=False
            )
        if (
            self.vanished
            and nothing_known
            and not (facts.reason or facts.conditions or facts.asked)
        ):
            # No controller does that without saying why, and pods do not go by themselves.
            return replace(facts, reason=DELETED)
        return facts


@final
class PodTracker:
    """Use it from one event loop.

    It tells of live processes; ends are handed out by `changed`, `gone` and `lost`.
    """

    def __init__(self, board: EventBus, clock: Clock) -> None:
        self._bus = board
        self._clock = clock
        self._lives: dict[str, Life] = {}
        self._asked: set[ProcessName] = set()
        self._closed: set[str] = set()
        """Uids of pods whose end was handed out and that may still be there."""

    def __len__(self) -> int:
        return len(self._lives)

    def life(self, name: ProcessName) -> Life | None:
        """The pod of a process that has not ended."""
        return next((life for life in self._lives.values() if life.name == name), None)

    def names(self) -> list[ProcessName]:
        """Processes that have not ended."""
        return [life.name for life in self._lives.values()]

    def lives(self) -> list[Life]:
        """Pods of processes that have not ended."""
        return list(self._lives.values())

    def ask(self, name: ProcessName, grace_s: float) -> None:
        """We are ending it ourselves.

        A node that has begun to end a pod waits for the grace that it was told first
        (kubernetes/kubernetes#83916). Where less is
        asked for later, the pod is forced off the books then, and its process ends with the first
        grace.
        """
        self._asked.add(name)
        if (life := self.life(name)) is None:
            return
        due_s = self._clock.now_s() + grace_s
        if life.asked and due_s < life.due_s:
            life.force_at_s = due_s + FORCE_AFTER_S
        life.asked, life.due_s = True, min(life.due_s, due_s)

    def changed(self, pod: Pod) -> Life | None:
        """Take a pod in. Returns its life if it has ended now: the caller tells."""
        identity = uid(pod)
        if identity in self._closed:
            return None
        life = self._lives.get(identity)
        if life is None:
            try:
                name = process_name(pod)
            except (KeyError, ValueError):
                _LOG.warning(
                    "pod %s has the label of this job but is no process of it",
                    pod["metadata"].get("name"),
                )
                return None
            life = self._lives[identity] = Life(pod, name, asked=name in self._asked)
        life.pod = pod
        if has_ended(pod):
            self._closed.add(identity)
            return self._lives.pop(identity)
        self._watch_over(life)
        self._tell(life)
        return None

    def gone(self, pod: Pod) -> Life | None:
        """A pod is there no more. Returns its life if its end was not told yet."""
        ended = self.changed(pod)
        self._closed.discard(uid(pod))
        if ended is None and (ended := self._lives.pop(uid(pod), None)) is not None:
            ended.vanished = True
        return ended

    def hopeless(self) -> list[Life]:
        """Pods to give up, since their image or their container could not be had for too long.

        Each is told once.
        """
        limit_s = self._clock.now_s() - PATIENCE_S
        waiting = [
            life
            for life in self._lives.values()
            if life.in_trouble_since_s is not None and life.given_up is None
        ]
        found = [life for life in waiting if (life.in_trouble_since_s or 0.0) < limit_s]
        for life in found:
            life.given_up = life.trouble
        return found

    def overstaying(self) -> list[Life]:
        """Pods to force off the books. Each is told once."""
        now_s = self._clock.now_s()
        found = [
            life
            for life in self._lives.values()
            if life.force_at_s is not None and now_s > life.force_at_s
        ]
        for life in found:
            life.force_at_s = None
        return found

    def lost(self) -> list[Life]:
        """Pods that should long have gone: their node does not answer.

        They are taken out of the book.
        """
        now_s = self._clock.now_s()
        overdue = [
            key
            for key, life in self._lives.items()
            if life.gone_at_s is not None and now_s > life.gone_at_s + OVERDUE_S
        ]
        self._closed.update(overdue)
        return [self._lives.pop(key) for key in overdue]

    def _watch_over(self, life: Life) -> None:
        now_s, metadata = self._clock.now_s(), life.pod["metadata"]
        found = trouble(life.pod)
        if observed(life.pod).running or not found.lasting:
            life.in_trouble_since_s = life.trouble = None
        else:
            life.in_trouble_since_s = (
                now_s if life.in_trouble_since_s is None else life.in_trouble_since_s
            )
            life.trouble = max(
                (known for known in (life.trouble, found) if known),
                key=lambda known: len(known.text),
            )
        if "deletionTimestamp" in metadata:
            due_s = now_s + float(metadata.get("deletionGracePeriodSeconds") or 0)
            life.gone_at_s = due_s if life.gone_at_s is None else min(life.gone_at_s, due_s)

    def _tell(self, life: Life) -> None:
        event = observed(life.pod)
        newest = self._bus.newest(life.name)
        if isinstance(newest, ProcessExited) or newest == event:
            return
        if isinstance(newest, ProcessObserved) and newest.running and not event.running:
            return
        self._bus.post(event)
