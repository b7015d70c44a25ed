"""CPU time of the master's decisions, without sockets and disk: for 1,000 and 10,000 workers.

Thousands of workers take turns at ticks, so it measures as many ticks as all turns need.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Any

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands, events
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.master.core.tick_share import ticks_for_all
from elasticdl.shard import Applied, Lease, Source, Task

WORKERS = (1_000, 10_000)
SHARD_RECORDS, LEAST_TICKS = 100, 5
SOON_S = 0.1
"""So short that no worker is near its limit after the ticks: it got a lease 10 s before at most."""
QUIET_S = 400.0
"""Long enough for every worker to be suspect."""


class Decisions:
    """One job with so many workers, each of which leases a shard and finishes it."""

    def __init__(self, workers: int) -> None:
        flags = {
            "model_zoo": "z",
            "model_def": "m",
            "training_data": "t",
            "records_per_task": SHARD_RECORDS,
            "minibatch_size": SHARD_RECORDS,
            "num_workers": workers,
            "num_ps_pods": 1,
            "checkpoint_seconds": 0,
        }
        self.spec = JobSpec.from_flags(Action.TRAIN, flags)
        self.state = JobState(self.spec, Limits())
        self.at_s, self.turn = 0.0, 0
        self.figures: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        """Return all figures by name."""
        self.work()
        self._timed_ticks("tick", SOON_S)
        with self._timed("status, ms", 1, 1e3):
            json.dumps(self.state.status().to_json())
        with self._timed("image, ms", 1, 1e3):
            image = json.dumps(self.state.image(self.spec))
        assert self.state.started is not None
        with self._timed("restore from the image, ms", 1, 1e3):
            JobState.from_image(self.spec, Limits(), self.state.started, json.loads(image))
        self._timed_ticks("tick when all are late", QUIET_S)
        return self.figures

    def work(self) -> None:
        """Start all processes; each worker finishes a shard and leases the next one."""
        # One event asks for all processes.
        ordered = [
            one.name
            for event in (
                events.MasterStarted(0.0),
                events.JobStarted(0.1, (Source("t", 100_000_000),)),
            )
            for one in self._handle(event)
            if isinstance(one, commands.StartProcess)
        ]
        workers = [name for name in ordered if name.role is Role.WORKER]
        with self._timed("start of a process, us", len(ordered)):
            for name in ordered:
                self._start(name)
        with self._timed("lease, us", len(workers)):
            leases = {worker: self._lease(worker) for worker in workers}
        with self._timed("report of a done shard, us", len(workers)):
            for worker, lease in leases.items():
                self._finish(worker, lease)
        for worker in workers:
            self._lease(worker)

    def tick(self, after_s: float) -> list[Any]:
        """Return the commands of the next tick."""
        self.turn += 1
        return self._handle(events.Tick(self.at_s + after_s, turn=self.turn))

    def _timed_ticks(self, what: str, first_after_s: float) -> None:
        """Measure ticks until every process has had its turn."""
        # Images and restored states are no part of the next measurement.
        gc.collect()
        spent_ms = []
        for number in range(max(LEAST_TICKS, ticks_for_all(len(self.state.going)))):
            begun_s = time.process_time()
            self.tick(first_after_s if number == 0 else SOON_S)
            spent_ms.append(1e3 * (time.process_time() - begun_s))
        self.figures[f"{what}, mean, ms"] = round(mean(spent_ms), 1)
        self.figures[f"{what}, maximum, ms"] = round(max(spent_ms), 1)

    @contextmanager
    def _timed(self, what: str, times: int, unit: float = 1e6) -> Iterator[None]:
        begun_s = time.process_time()
        yield
        self.figures[what] = round(unit * (time.process_time() - begun_s) / times, 1)

    def _handle(self, event: events.Event) -> list[Any]:
        self.at_s = event.at_s
        return self.state.handle(event)

    def _start(self, name: ProcessName) -> None:
        address = "host:1" if name.role is Role.PS else ""
        self._handle(events.ProcessSeen(self.at_s + 1e-3, name, True, "node", ""))
        self._handle(events.ProcessAttached(self.at_s, name, address, address, None, instance="1"))

    def _lease(self, worker: ProcessName) -> Lease:
        (answer,) = (
            one
            for one in self._handle(events.LeaseRequested(self.at_s + 1e-3, worker))
            if isinstance(one, commands.GrantLease)
        )
        lease: Lease = answer.lease
        return lease

    def _finish(self, worker: ProcessName, lease: Lease) -> None:
        assert lease.shard is not None
        applied = Applied(lease.shard.id, lease.attempt, SHARD_RECORDS)
        at_s = self.at_s + 1e-3
        self._handle(
            events.ProgressReported(
                at_s, worker, Task.TRAINING, applied, version=1, loss=0.5, done=True
            )
        )


def measure() -> dict[str, dict[str, float]]:
    figures = {f"{workers:,} workers": Decisions(workers).run() for workers in WORKERS}
    first, last = figures.values()
    for what, value in first.items():
        print(f"{what:>34}  {value:10,.1f} {last[what]:10,.1f}")
    return figures
