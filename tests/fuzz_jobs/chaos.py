"""Signals to random processes of a job, master and servers among them, while it trains."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tests.fuzz_jobs.command import Prepared
from tests.fuzz_jobs.flags import Draft, Then
from tests.fuzz_jobs.running import Act, processes
from tests.lost_memory import lose_servers

_TRAINS_S = 12.0
"""Roughly how long a job trains, so that strikes come during training."""
_LONGEST_PAUSE_S = 0.5
_MOST_STRIKES = 6
_MOST_OF_MASTER = 4
"""Masters that are killed without progress between end a job: after five."""


class Role(StrEnum):
    """Of a process that a strike can hit."""

    MASTER = "master"
    SERVER = "ps"
    WORKER = "worker"


_SIGNALS: Mapping[Role, tuple[signal.Signals, ...]] = {
    Role.MASTER: (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP),
    Role.SERVER: (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP),
    Role.WORKER: (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP),
}
"""SIGTERM to a master stops the job."""


@dataclass(frozen=True)
class Strike:
    """A signal to one process of a role. `after_s`: since the strike before."""

    role: Role
    number: signal.Signals
    after_s: float
    stopped_s: float
    """How long a SIGSTOP lasts."""
    with_memory: bool = False
    """Whether a server's memory goes with it, as soon as there is a checkpoint to return to."""


def prepare(draft: Draft) -> None:
    """Have a job train for long enough, in one run, with a budget for all that is killed."""
    draft.then = Then.NOTHING
    draft.pause_s = min(_LONGEST_PAUSE_S, _TRAINS_S / max(1, draft.steps))
    _give(draft, "max_relaunches", 100)
    if draft.in_steps and not draft.flags.get("checkpoint_steps"):
        # There is something to return to.
        _give(draft, "checkpoint_steps", max(1, draft.steps // 8))


def _give(draft: Draft, name: str, value: int) -> None:
    draft.flags[name], draft.spelling[name] = value, "-"
    draft.in_file = tuple(one for one in draft.in_file if one != name)


def strikes(draft: Draft, roles: Iterable[Role]) -> list[Strike]:
    """The same for the same draft."""
    choose = random.Random(f"strikes {draft.strategy} {draft.seed}")
    among = [role for role in roles if not (role is Role.SERVER and draft.on_ring)]
    found = [
        Strike(
            role := choose.choice(among),
            choose.choice(_SIGNALS[role]),
            choose.choice((0.0, choose.uniform(0, 1), choose.uniform(0, 4))),
            choose.uniform(0.2, 3),
        )
        for _ in range(choose.randint(1, _MOST_STRIKES))
    ]
    if draft.in_steps:
        # Others could lose what a worker that ended has pushed.
        lost = random.Random(f"lost {draft.seed}")
        found = [
            replace(one, with_memory=_kills_server(one) and lost.random() < 0.7) for one in found
        ]
    of_master = [one for one in found if one.role is Role.MASTER]
    return [one for one in found if one not in of_master[_MOST_OF_MASTER:]]


def _kills_server(strike: Strike) -> bool:
    return strike.role is Role.SERVER and strike.number is signal.SIGKILL


class Chaos(Act):
    """Carries the strikes out, from the moment when the first step is made."""

    look_s = 0.1

    def __init__(self, prepared: Prepared, roles: Iterable[Role]) -> None:
        super().__init__(prepared)
        self._prepared = prepared
        self._waiting = strikes(prepared.draft, roles)
        self._due_s: float | None = None
        self._stopped: list[tuple[float, int]] = []
        self._had: set[int] = set()
        self.struck = 0
        self.story: list[str] = []

    def look(self, status: Mapping[str, Any] | None, process: subprocess.Popen[bytes]) -> None:
        """Strike if it is time, whether the master answers or not."""
        now_s = time.monotonic()
        for until_s, pid in [one for one in self._stopped if one[0] <= now_s]:
            self._stopped.remove((until_s, pid))
            _send(pid, signal.SIGCONT)
        if self._due_s is None:
            if status is not None and status["version"] > 0:
                self._due_s = now_s + self._waiting[0].after_s
            return
        while self._waiting and self._due_s <= now_s and self._strike(self._waiting[0], status):
            self._waiting.pop(0)
            if self._waiting:
                self._due_s = now_s + self._waiting[0].after_s

    def close(self) -> None:
        """Let go on what is stopped."""
        for _, pid in self._stopped:
            _send(pid, signal.SIGCONT)

    def _strike(self, strike: Strike, status: Mapping[str, Any] | None) -> bool:
        victims = self._victims(strike.role, status)
        if not victims:
            return False
        name, pid = self._choose.choice(sorted(victims))
        if strike.with_memory and not (status and status["checkpoints"]):
            return False
        if not (self._lose(name, pid) if strike.with_memory else _send(pid, strike.number)):
            return False
        with_memory = " and its memory" * strike.with_memory
        self.story.append(f"{strike.number.name} to {name}{with_memory}")
        if strike.number is signal.SIGSTOP:
            self._stopped.append((time.monotonic() + strike.stopped_s, pid))
        else:
            self._had.add(pid)
        if strike.role is not Role.MASTER:
            self.struck = (self.struck or 0) + 1
        if strike.role is Role.WORKER:
            self.kills += 1
        return True

    def _lose(self, name: str, pid: int) -> bool:
        index = int(name.removeprefix(f"{Role.SERVER}-").partition(".")[0])
        try:
            lose_servers(self._prepared.job, lambda _: [pid], index)
        except ProcessLookupError:
            return False
        return True

    def _victims(self, role: Role, status: Mapping[str, Any] | None) -> list[tuple[str, int]]:
        """Names and ids of those that may be hit now; none: look again in a moment."""
        if role is Role.MASTER:
            return [("master", pid) for pid in self._masters() if pid not in self._had]
        if role is Role.WORKER and self._prepared.draft.on_ring and not self._spare(status):
            return []
        return [
            (name, pid)
            for name, pid in processes(self._prepared.job)
            if name.startswith(f"{role}-") and pid not in self._had
        ]

    def _masters(self) -> list[int]:
        with suppress(OSError, ValueError):
            return [int(json.loads((self._prepared.job / "master.json").read_text())["pid"])]
        return []

    def _spare(self, status: Mapping[str, Any] | None) -> bool:
        """Whether a ring has two members: the weights of the last one would go with it."""
        ring = None if status is None else status["ring"]
        if ring is None or ring["generation"] != ring["formed"]:
            return False
        there = {name for name, pid in processes(self._prepared.job) if pid not in self._had}
        stopped = {pid for _, pid in self._stopped}
        return len(there & set(ring["members"])) == len(ring["members"]) > 1 and not stopped


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
