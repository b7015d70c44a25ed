"""Measure the pauses that a killed, a silent and a joining member cause in a ring of two.

A whole job trains the MLP of `bench/zoo`.

`python -m bench.ring_recovery KILLS` measures only this, and prints the members' own account of
their pauses.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import RunningJob, running
from bench.step_log import steps_of

BATCH = 64
_MEASURED = ("kill", "lost", "join", "after_join", "step")
_REST_S = 1.5
_FIRST_S = 0.2
"""A first step ends at most so long after a generation is complete."""
_APART_S = 0.005
"""Members tell of the same step at most so long one after the other."""


def formed(job: RunningJob, members: int, after: int = 0) -> int | None:
    """Return the newest generation once it is complete, newer and of the given size."""
    status = job.status()
    ring = status["ring"] if status else None
    if ring is None or len(ring["members"]) != members:
        return None
    return ring["generation"] if after < ring["generation"] == ring["formed"] else None


@dataclass
class Recovery:
    """Seconds without a step of the survivor.

    `kill`, `lost`: from the signal to its next step; `join`: between two steps.
    """

    kill: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    join: list[float] = field(default_factory=list)
    after_join: list[float] = field(default_factory=list)
    """The slowest step of the second after each join."""
    step: list[float] = field(default_factory=list)
    """Medians of the survivor's steps before each signal."""
    repeated_records: int = 0
    words: list[str] = field(default_factory=list)
    """What members say of each change of the ring: ms from step to step, and with what."""

    def figures(self) -> dict[str, Any]:
        parts = {name: [round(value, 4) for value in getattr(self, name)] for name in _MEASURED}
        return {**parts, "repeated_records": self.repeated_records, "words": self.words}


def recovery(kills: int) -> dict[str, Any]:
    """Kill rank 0 and rank 1 in turn, each time after the replacement of the one before has joined;
    then stop one.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "mlp.npz"
        rng = np.random.default_rng(0)
        np.savez(
            data, x=rng.normal(size=(65536, 784)).astype(np.float32), y=rng.integers(0, 10, 65536)
        )
        flags: dict[str, Any] = {
            "distribution_strategy": "AllreduceStrategy",
            "num_workers": 2,
            "minibatch_size": 2 * BATCH,
        }
        with running(model_def="mlp", training_data=data, num_epochs=1000, **flags) as job:
            return _measured(job, kills).figures()


def _measured(job: RunningJob, kills: int) -> Recovery:
    found = Recovery()
    generation = job.until("both were in the ring", lambda: formed(job, 2))
    for number in range(kills):
        time.sleep(_REST_S)
        _strike(job, found, number % 2, signal.SIGKILL)
        # The kill made a generation of one member; the join makes another.
        generation = job.until("another joined", partial(formed, job, 2, generation + 1))
        time.sleep(_REST_S)
        pause_s, slowest_s = _pause_at(job, generation)
        found.join.append(pause_s)
        found.after_join.append(slowest_s)
    _strike(job, found, 1, signal.SIGSTOP)
    found.repeated_records = job.live_status()["records"]["repeated"]
    for log in sorted((job.directory / "logs").glob("worker-*.log")):
        found.words += [
            f"{log.stem}{line.partition('generation')[2]}"
            for line in log.read_text().splitlines()
            if " trains after " in line
        ]
    return found


def _strike(job: RunningJob, found: Recovery, rank: int, with_signal: signal.Signals) -> None:
    ring = job.live_status()["ring"]
    victim, survivor = ring["members"][rank], ring["members"][1 - rank]
    pid, generation = job.live_pid(victim), ring["generation"]
    at_s = time.time()
    os.kill(pid, with_signal)
    generation = job.until(
        "the other went on alone", lambda: formed(job, 1, generation), look_s=0.05
    )
    time.sleep(0.5)
    if with_signal == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    gaps = [
        (b - a, b) for a, b in itertools.pairwise(steps_of(job.directory)[survivor]) if b > at_s - 1
    ]
    found.step.append(statistics.median(gap for gap, end_s in gaps if end_s < at_s))
    # The step in flight may have completed and been logged after the signal, so use the
    # end of the pause.
    told_s, complete_s = _times_of(job, generation)
    end_s = max(gap for gap in gaps if told_s < gap[1] < complete_s + _FIRST_S)[1]
    (found.lost if with_signal == signal.SIGSTOP else found.kill).append(end_s - at_s)


def _pause_at(job: RunningJob, generation: int) -> tuple[float, float]:
    """The longest time between two steps of one that was there before, until the newcomer's first
    step; that in a second after it.
    """
    told_s, _ = _times_of(job, generation)
    steps = steps_of(job.directory)
    first_s = min(times[0] for times in steps.values() if times and times[0] > told_s)
    here = [times for times in steps.values() if times and times[0] < told_s < times[-1]]
    gaps = [
        (b - a, b - first_s - _APART_S)
        for times in here
        for a, b in itertools.pairwise(times)
        if b > told_s
    ]
    return max(gap for gap, after_s in gaps if after_s < 0), max(
        gap for gap, after_s in gaps if 0 <= after_s < 1.0
    )


def _times_of(job: RunningJob, generation: int) -> tuple[float, float]:
    """Return when the master published a generation and when all its members had entered it."""
    said = [json.loads(line) for line in (job.directory / "events.jsonl").read_text().splitlines()]
    name = f"generation {generation} of the ring"
    told_s, complete_s = (
        next(one["at"] for one in said if one["text"].startswith(f"{name}{what}"))
        for what in (": ", " is complete")
    )
    return told_s, complete_s


def main(kills: int) -> None:
    figures = recovery(kills)
    print("\n".join(figures.pop("words")))
    for name in _MEASURED:
        values = figures[name]
        print(
            f"{name}: median {statistics.median(values):.3f} of"
            f" {', '.join(f'{one:.3f}' for one in sorted(values))} s"
        )
    print(f"{figures['repeated_records']} records repeated")


if __name__ == "__main__":
    main(int(sys.argv[1]))
