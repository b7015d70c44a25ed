"""What `--virtual-workers` costs a ring, in CPU time, which a busy machine hardly changes.

One member's step of ResNet20 on 128 images, as one part and as several; and the exchange of
gradients between members: all-reduce, and all-gather with a tree of additions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from bench.jobs import ROOT
from bench.peer_elastic_kills import horovodrun

BATCH, ROUNDS = 128, 12
FLOATS = (270_000, 4_000_000)
"""Of the gradients of ResNet20, and of a larger model."""


def measure() -> dict[str, dict[str, float]]:
    """Median ms of CPU of one member."""
    figures = {"step": _run([sys.executable, "-m", "bench.virtual_workers", "step"])}
    for members in (2, 4):
        launcher = [*horovodrun(), "-np", str(members), "--gloo", "-H", f"localhost:{members}"]
        command = [*launcher, sys.executable, "-m", "bench.virtual_workers", "exchange"]
        figures[f"exchange of {members} members"] = _run(command)
    for name, row in figures.items():
        cells = "   ".join(f"{what} {cpu_ms:.1f}" for what, cpu_ms in row.items())
        print(f"{name:24} {cells} ms CPU", flush=True)
    return figures


def _run(command: list[str]) -> dict[str, float]:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3",
        "ELASTICDL_JOB_DIR": "/tmp",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    lines = [line for line in done.stdout.splitlines() if "{" in line]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{command} failed:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(lines[0][lines[0].index("{") :])
    return figures


def _cpu_ms(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians of interleaved rounds."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # compile
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin_s = time.process_time()
            call()
            seen[name].append(1e3 * (time.process_time() - begin_s))
    return {name: round(median(times), 2) for name, times in seen.items()}


def step() -> dict[str, float]:
    """Steps in a ring of one."""
    import numpy as np

    from elasticdl.job_flags import ModelSection
    from elasticdl.model.module import load_module
    from elasticdl.model.ring_model import RingModel
    from elasticdl.model.ring_step import RingStep
    from elasticdl.worker.ring.base import RingMembership
    from elasticdl.worker.ring.ring import HorovodRing
    from elasticdl.worker.ring.virtual_step import VirtualStep, use_one_thread

    use_one_thread()
    section = ModelSection(model_zoo=str(ROOT / "bench/zoo"), model_def="resnet20")
    module, ring = load_module(section), HorovodRing()
    ring.enter(RingMembership(0, 0, 1))
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH, 32, 32, 3)).astype(np.float32)
    labels = random.integers(0, 10, BATCH)

    def call(count: int) -> Callable[[], Any]:
        model, size = RingModel.build(module, {}, seed=1), BATCH // max(1, count)
        trained = VirtualStep(model, ring, count) if count else RingStep(model, ring)
        parts = [(images[at : at + size], labels[at : at + size]) for at in range(0, BATCH, size)]
        return lambda: trained.train(parts, rank=0, size=1, iteration=0)

    names = {0: "without", 1: "1 part", 2: "2 parts", 4: "4 parts"}
    return _cpu_ms({name: call(count) for count, name in names.items()})


def exchange() -> dict[str, float]:
    """Exchanges among the members that horovodrun has started."""
    import horovod.tensorflow as horovod

    from elasticdl.worker.ring.virtual_step import use_one_thread

    use_one_thread()
    horovod.init()
    calls: dict[str, Callable[[], Any]] = {}
    for count in FLOATS:
        calls |= exchanges(horovod, count)
    found = _cpu_ms(calls)
    return found if horovod.rank() == 0 else {}


def exchanges(horovod: Any, count: int) -> dict[str, Callable[[], Any]]:
    """Both ways to add vectors of `count` floats of all members."""
    import tensorflow as tf

    from elasticdl.worker.ring.sum_tree import sum_of

    mine, members = tf.random.normal([count]), horovod.size()
    reduce: Any = tf.function(
        lambda tensor: horovod.allreduce(tensor, op=horovod.Sum, name=f"reduce.{count}")
    )
    gather: Any = tf.function(
        lambda tensor: horovod.allgather(tensor[tf.newaxis], name=f"gather.{count}")
    )

    def add() -> Any:
        leaves = {(at, at + 1): one for at, one in enumerate(tf.unstack(gather(mine)))}
        return sum_of((0, members), leaves, tf.add)

    return {
        f"{count:,} floats, all-reduce": lambda: reduce(mine),
        f"{count:,} floats, tree": add,
    }


if __name__ == "__main__":
    made = {"step": step, "exchange": exchange}[sys.argv[1]]()
    if made:
        print(json.dumps(made), flush=True)
