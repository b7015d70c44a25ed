"""Kills in a running job: SIGKILL to a random process every few seconds until the job ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SEEDS = int(os.environ.get("ELASTICDL_CHURN_SEEDS", "0"))
"""How many seeds a churn test is to run; 0: as many as it runs among all others."""

_LOOK_S = 0.05
_PACED = """

import time

import keras


class Paced(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep({pace_s})


def callbacks():
    return [Paced()]
"""


def write_paced(module: Path, folder: Path, name: str, pace_s: float) -> None:
    """Put a copy of a model's module into a folder. It waits after each step instead of calling
    the module's own callbacks, so a fast machine does not end the job before the kills.
    """
    (folder / f"{name}.py").write_text(module.read_text() + _PACED.format(pace_s=pace_s))


@dataclass(frozen=True)
class Kill:
    """One that was killed: its name, where it stood among those that could be, and of how many."""

    name: str
    place: int
    among: int

    def __str__(self) -> str:
        return f"{self.name} ({self.place + 1} of {self.among})"


class Running(Protocol):
    """A job that runs as a child of this process."""

    @property
    def process(self) -> subprocess.Popen[Any]: ...

    def status(self) -> dict[str, Any] | None:
        """The master's view, or None while there is no master."""


Victims = Callable[[dict[str, Any]], Sequence[str]]
"""From the master's status to the processes of which one may be killed now; none: look again in a
moment.
"""


def kill_until_it_ends(
    job: Running,
    choose: random.Random,
    *,
    every_s: tuple[float, float],
    victims: Victims,
    most: int,
) -> list[Kill]:
    """Kill one of `victims` after a random time of `every_s`, at most so often, until the job ends
    by itself.
    """
    kills: list[Kill] = []
    while len(kills) < most and not _ended(job, choose.uniform(*every_s)):
        found: tuple[dict[str, Any], Sequence[str]] | None = None
        while found is None and not _ended(job, _LOOK_S):
            status = job.status()
            names = victims(status) if status is not None else ()
            found = (status, names) if status is not None and names else None
        if found is not None:
            status, names = found
            place = choose.randrange(len(names))
            if _kill(status, names[place]):
                kills.append(Kill(names[place], place, len(names)))
    return kills


def _ended(job: Running, within_s: float) -> bool:
    try:
        job.process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(status: dict[str, Any], name: str) -> bool:
    where = next(
        (process["where"] for process in status["processes"] if process["name"] == name), None
    )
    if where is None or not where.startswith("pid "):
        return False
    try:
        os.kill(int(where.removeprefix("pid ")), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def live(role: str) -> Victims:
    """All processes of a role that are there."""

    def names(status: dict[str, Any]) -> list[str]:
        return [
            process["name"]
            for process in status["processes"]
            if process["role"] == role and str(process["where"]).startswith("pid ")
        ]

    return names


def spare_members() -> Victims:
    """Members of the newest ring by rank, where two at least have the weights: the last one's would
    go with it.

    What was killed before must be out of the ring: a status may be older than the kill.
    """
    seen = 0

    def names(status: dict[str, Any]) -> Sequence[str]:
        nonlocal seen
        ring = status["ring"]
        if (
            ring is None
            or len(ring["members"]) < 2
            or not seen < ring["generation"] == ring["formed"]
        ):
            return ()
        seen = ring["generation"]
        return ring["members"]

    return names
