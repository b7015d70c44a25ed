"""What killed processes cost a job: the takeover by another master, and goodput under kills.

`python -m bench.faults` runs jobs of FAULTS_WORKERS workers (2) and a server, whose steps take a
given time:

- masters are killed, one after another: the time until the next one grants a lease, and the steps
  of the 10 s around each kill beside the steps before;
- every 15 s one process is killed, a worker, the server or the master by turns: records trained in
  that time beside what the processes that lived could do;
- the same, but all that is left of a killed process is the newest checkpoint: the whole job is
  killed and resumed, as if training were restarted by its scheduler.

FAULTS_SECONDS (120) is how long each of the last two trains. `torchft_stated` is what a group of
replicas keeps under the same kills if survivors pause as long as torchft's did (`bench/ring.py`):
with its default limit of silence, and with one of a second.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import RunningJob, running
from bench.ring import STATED
from bench.step_log import steps_of
from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events import LeaseRequested, MasterTookOver
from elasticdl.master.journal.recovery import replay

SECONDS = float(os.environ.get("FAULTS_SECONDS", "120"))
TAKEOVERS = int(os.environ.get("FAULTS_TAKEOVERS", "5"))
EVERY_S = 15.0
STEP_S, BATCH = 0.05, 64
WORKERS = int(os.environ.get("FAULTS_WORKERS", "2"))
_REST_S = 8.0
_AROUND_S = 10.0


def measure() -> dict[str, Any]:
    figures = {"takeover": takeover(), **goodput()}
    for name, row in figures.items():
        print(f"{name}: {json.dumps(row)}", flush=True)
    return figures


def takeover() -> dict[str, Any]:
    """Kill masters; seconds until the next lease, and steps around each kill."""
    with _data() as data, running(**_flags(data)) as job:
        _wait_until_it_trains(job)
        killed_s: list[float] = []
        for _ in range(TAKEOVERS):
            time.sleep(_REST_S)
            killed_s.append(time.time())
            _kill_by_file(job, "master.json")
            time.sleep(_AROUND_S)
        repeated = job.live_status()["records"]["repeated"]
        times_s = sorted(itertools.chain(*steps_of(job.directory).values()))
        leases_s = list(_first_leases(job.directory))
    before = [_rate(times_s, at_s - _REST_S, at_s) for at_s in killed_s]
    around = [_rate(times_s, at_s, at_s + _AROUND_S) for at_s in killed_s]
    return {
        "first_lease_s": [round(b - a, 2) for a, b in zip(killed_s, leases_s, strict=True)],
        "steps_around": [round(b / a, 3) for a, b in zip(before, around, strict=True)],
        "repeated": repeated,
    }


def goodput() -> dict[str, Any]:
    """Records trained under kills, beside those of a job that nobody disturbs."""
    with _data() as data:
        with running(**_flags(data)) as job:
            _wait_until_it_trains(job)
            undisturbed = _Window(job)
            time.sleep(SECONDS / 4)
            undisturbed.close()
        with running(**_flags(data)) as job:
            _wait_until_it_trains(job)
            turns = _Window(job)
            kills = _kill_by_turns(job, time.time() + SECONDS)
            turns.close()
        restarted = _restarted(data)
    worker_s = undisturbed.records / undisturbed.living_s
    return {
        "killed_by_turns": {
            "kills": kills,
            "of_living": round(turns.records / (worker_s * turns.living_s), 3),
            "of_undisturbed": round(turns.records / turns.took_s / undisturbed.records_s, 3),
            "repeated": turns.repeated,
            "updates_lost": turns.updates_lost,
        },
        "restarted_from_checkpoints": {
            "of_undisturbed": round(restarted / undisturbed.records_s, 3)
        },
        "torchft_stated": {
            "of_living": [round(1 - STATED["torchft"][of] / EVERY_S, 2) for of in ("lost", "kill")]
        },
    }


class _Window:
    """What a job does from now on."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._begin_s, self._before = time.time(), job.live_status()
        self.records = self.repeated = self.updates_lost = 0
        self.took_s = self.living_s = 0.0

    def close(self) -> None:
        end_s, status = time.time(), self._job.live_status()
        self.took_s = end_s - self._begin_s
        self.records = status["records"]["trained"] - self._before["records"]["trained"]
        self.repeated = status["records"]["repeated"]
        self.updates_lost = status["updates"]["lost"]
        for times_s in steps_of(self._job.directory).values():
            inside = [one for one in times_s if self._begin_s <= one <= end_s]
            # A worker lives from its first step to its last one.
            self.living_s += inside[-1] - inside[0] if inside else 0.0

    @property
    def records_s(self) -> float:
        return self.records / self.took_s


def _kill_by_turns(job: RunningJob, until_s: float) -> list[str]:
    """Kill one process every 15 s; return which."""
    turns, kills = itertools.cycle(("worker", "master", "ps")), list[str]()
    while time.time() + EVERY_S < until_s:
        time.sleep(EVERY_S)
        role = next(turns)
        if role == "master":
            _kill_by_file(job, "master.json")
        else:
            os.kill(job.live_pid(_newest(job, role)), signal.SIGKILL)
        kills.append(role)
    time.sleep(max(0.0, until_s - time.time()))
    return kills


def _restarted(data: Path) -> float:
    """Kill the whole job every 15 s, resume it from its newest checkpoint; return records/s."""
    flags, begin_s, trained = {**_flags(data), "checkpoint_seconds": 5}, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        while not begin_s or time.time() < begin_s + SECONDS:
            resumed = {"resume": True} if begin_s else {}
            with running(Path(folder), **flags, **resumed) as job:
                _wait_until_it_trains(job)
                begin_s = begin_s or time.time()
                time.sleep(EVERY_S)
                trained = job.live_status()["records"]["trained"]
                _kill_by_file(job, "supervisor.json")
                job.process.wait(30)
        return trained / (time.time() - begin_s)


@contextmanager
def _data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.random.default_rng(0).normal(size=(65536, 9)).astype(np.float32))
        yield path


def _flags(data: Path) -> dict[str, Any]:
    return {
        "model_def": "paced_log",
        "training_data": data,
        "num_epochs": 1000,
        "minibatch_size": BATCH,
        "records_per_task": 4 * BATCH,
        "num_workers": WORKERS,
        "num_ps_pods": 1,
        "envs": f"PACED_STEP_S={STEP_S}",
    }


def _wait_until_it_trains(job: RunningJob) -> None:
    """All workers have made some steps."""

    def trains() -> bool | None:
        known = [times_s for times_s in steps_of(job.directory).values() if len(times_s) > 10]
        return len(known) >= WORKERS or None

    job.until("all workers trained", trains)


def _kill_by_file(job: RunningJob, name: str) -> None:
    os.kill(json.loads((job.directory / name).read_text())["pid"], signal.SIGKILL)


def _newest(job: RunningJob, role: str) -> str:
    """The live process of a role that was started last."""
    live = [
        ProcessName.parse(one["name"])
        for one in job.live_status()["processes"]
        if one["role"] == role and str(one["where"]).startswith("pid ")
    ]
    return str(max(live, key=lambda name: (name.index, name.incarnation)))


def _rate(times_s: list[float], begin_s: float, end_s: float) -> float:
    return sum(begin_s <= one < end_s for one in times_s) / (end_s - begin_s)


def _first_leases(directory: Path) -> Iterator[float]:
    """When each next master granted its first lease (s since the epoch), by the journal."""
    lines = (directory / "events.jsonl").read_text().splitlines()
    begun = next(one for one in map(json.loads, lines) if one["details"].get("step") == "begun")
    waits = False
    for event in replay(directory / "journal"):
        if isinstance(event, MasterTookOver):
            waits = True
        elif waits and isinstance(event, LeaseRequested):
            waits = False
            yield begun["at"] - begun["at_s"] + event.at_s


if __name__ == "__main__":
    measure()
