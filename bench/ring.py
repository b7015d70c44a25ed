"""A ring of two workers: throughput against one process and plain Horovod, and what kills, lost
nodes and joins cost.

Whole jobs of `elasticdl train --distribution-strategy AllreduceStrategy`; times of steps are those
at which a callback of the
module saw them. Horovod's own elastic driver goes through the same kill and join on the same model.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import ROOT, cpu_time_s, running
from bench.peer_elastic_kills import horovod_elastic, horovodrun
from bench.ring_recovery import formed, recovery
from bench.step_log import steps_of

BATCH = 128
SECONDS = 8.0
KILLS = 8
STATED = {
    "torchrun": {"kill": 1.95, "lost": 46.7},
    "torchft": {"kill": 1.05, "lost": 5.1, "join": 0.02},
}
"""Seconds, each at its best: torchrun elastic and torchft 0.2, in November 2026 on 2 cores (AMD Zen
5), 24 GiB.

Constants, since PyTorch is no dependency of this project.
"""


def measure(rounds: int = 3) -> dict[str, Any]:
    """Measure all parts; takes about ten minutes."""
    peer = horovod_elastic(rounds)
    figures = {
        "throughput": throughput(rounds),
        "ours": recovery(KILLS),
        "horovod_elastic": peer,
        "stated": STATED,
    }
    print_recovery(figures)
    return figures


def throughput(rounds: int) -> dict[str, Any]:
    """Samples/s of ResNet20, medians of interleaved rounds; CPU time a sample of each process."""
    cores = str(os.cpu_count())
    measured = (str(BATCH), str(SECONDS))
    alone = [sys.executable, "-m", "bench.peer_ring", "1", *measured, "plain"]
    with_horovod = [*horovodrun(), "-np", "2", "--gloo", "-H", "localhost:2"]
    peers = {
        "one process, 1 thread": (1, alone),
        "two of these, apart": (
            2,
            alone,
        ),  # the cores' limit for two independent processes
        "one process, all cores": (
            1,
            [sys.executable, "-m", "bench.peer_ring", cores, *measured, "plain"],
        ),
        "plain Horovod, 2 workers": (
            1,
            [*with_horovod, sys.executable, "-m", "bench.peer_ring", "1", *measured, "horovod"],
        ),
    }
    seen: dict[str, list[tuple[float, float]]] = {
        name: [] for name in ("elasticdl, 2 workers", *peers)
    }
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "images.npz"
        rng = np.random.default_rng(0)
        np.savez(
            data,
            image=rng.normal(size=(8192, 32, 32, 3)).astype(np.float32),
            label=rng.integers(0, 10, 8192),
        )
        for _ in range(rounds):
            seen["elasticdl, 2 workers"].append(ours(data))
            for name, (copies, command) in peers.items():
                seen[name].append(peer(command, copies))
    figures = {
        name: {
            "samples_per_s": round(statistics.median(rate for rate, _ in found), 1),
            "cpu_ms_a_sample": round(statistics.median(cpu for _, cpu in found), 3),
        }
        for name, found in seen.items()
    }
    mine = figures["elasticdl, 2 workers"]["samples_per_s"]
    for name, one in figures.items():
        ratio = (
            f"ours is {mine / one['samples_per_s']:.2f} x" if name != "elasticdl, 2 workers" else ""
        )
        print(
            f"ResNet20, {name:26} {one['samples_per_s']:8.1f} samples/s "
            f" {one['cpu_ms_a_sample']:.2f} ms CPU a sample  {ratio}",
            flush=True,
        )
    return figures


def peer(command: Sequence[str], copies: int = 1) -> tuple[float, float]:
    """(samples/s of all copies, which run at the same time; ms of CPU a sample)."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        for _ in range(copies)
    ]
    try:
        found = [_figures_of(one) for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()
    return sum(rate for rate, _ in found), statistics.mean(cpu_ms for _, cpu_ms in found)


def _figures_of(child: subprocess.Popen[str]) -> tuple[float, float]:
    output, errors = child.communicate(timeout=300)
    lines = [line for line in output.splitlines() if "figures" in line]
    if child.returncode != 0 or not lines:
        raise RuntimeError(f"{child.args!r} failed:\n{output[-1000:]}\n{errors[-2000:]}")
    rate, cpu_ms = lines[0].split()[-2:]
    return float(rate), float(cpu_ms)


def ours(data: Path) -> tuple[float, float]:
    """(samples/s, ms of CPU a sample of the worker of rank 0), read from a file, shuffled, in
    steady state.
    """
    with running(
        model_def="resnet20",
        distribution_strategy="AllreduceStrategy",
        training_data=data,
        num_epochs=1000,
        minibatch_size=2 * BATCH,
        num_workers=2,
    ) as job:
        job.until("both were in the ring", lambda: formed(job, 2))
        first = job.live_status()["ring"]["members"][0]
        pid = job.live_pid(first)
        begun = len(steps_of(job.directory)[first])
        job.until("a few steps", lambda: len(steps_of(job.directory)[first]) > begun + 4 or None)
        begun, cpu = len(steps_of(job.directory)[first]), cpu_time_s(pid)
        end_s = time.time() + SECONDS
        job.until("it had trained long enough", lambda: time.time() > end_s or None)
        times, cpu = steps_of(job.directory)[first], cpu_time_s(pid) - cpu
    steps = len(times) - begun
    return steps * 2 * BATCH / (times[-1] - times[begun - 1]), cpu / (steps * BATCH) * 1e3


def print_recovery(figures: dict[str, Any]) -> None:
    for name in ("ours", "horovod_elastic"):
        parts = [
            f"{what} median {statistics.median(figures[name][what]):.3f} of"
            f" {', '.join(f'{value:.3f}' for value in figures[name][what])} s"
            for what in ("kill", "join", "lost")
            if figures[name].get(what)
        ]
        print(f"{name:16} {'; '.join(parts)}", flush=True)
