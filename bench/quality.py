"""How the metric goes with steps and with time: plain Keras, and jobs with default flags on 1, 2, 4
and 8 workers; of some also with workers that are killed every few seconds, and with workers that
join.

`QUALITY_CASES`, `QUALITY_SEEDS` and `QUALITY_SYSTEMS` shorten it; the last has `keras`, numbers of
workers, `killed` and `joining`. It may also have

- `2-sync` and `2-async`: 2 workers with `--sync` and `--no-sync`;
- `2-parts`: what 2 workers compute in synchronous steps, in one process, which takes less time;
- `sums`: Keras with the gradients of equal ids added.

Steps of 8 workers take 0.1 s more, without a processor: as if each had its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeAlias

from bench import deepfm_data
from bench.jobs import ROOT, RunningJob, running
from bench.planted_images import write
from elasticdl.data import open_reader
from model_zoo import make_data
from tests import churn

RECORDS = 8192
PACED, PACE_S = 8, 0.1
KILL_EVERY_S = (1.5, 3.0)
LIMIT_S = 1200.0
LOOKS = 8
"""Evaluations of a run."""
Run: TypeAlias = dict[str, Any]
"""`metric` at the end; `curve` of (share of the steps, seconds from the start, metric); `load` of
the machine at the end, since gradients are the more stale, the longer workers wait for a core.
"""
Figures: TypeAlias = dict[str, dict[str, list[Run]]]


@dataclass(frozen=True, slots=True)
class Case:
    """A module with its data and flags. `metric` is a path in what `eval_metrics_fn` returns."""

    model_def: str
    data: str
    epochs: int
    batch: int
    suffix: str = "npz"
    metric: str = "accuracy"
    zoo: Path = ROOT / "model_zoo"
    params: Mapping[str, Any] = field(default_factory=dict)
    records: int = 30_000
    """Of data that is made to any length."""
    kills: bool = False
    """Whether jobs whose workers are killed, or join, are measured, too."""
    reader_params: Mapping[str, Any] = field(default_factory=dict)


def _cnn(optimizer: str, epochs: int = 6) -> Case:
    params = {"optimizer": optimizer, "steps": epochs * RECORDS // 64}
    kills = optimizer in ("momentum", "adam")
    return Case("cnn", "planted", epochs, 64, zoo=ROOT / "bench/zoo", params=params, kills=kills)


def _ctr(optimizer: str, batch: int) -> Case:
    """One pass over the data of `bench end_to_end`, whose records are as many as E2E_RECORDS."""
    params = {"optimizer": optimizer}
    return Case("deepfm", "ctr", 1, batch, metric="auc", zoo=ROOT / "bench/zoo", params=params)


CASES: Mapping[str, Case] = {
    **{f"cnn-{name}": _cnn(name) for name in ("momentum", "nesterov", "sgd", "adam", "adagrad")},
    "iris": Case("iris", "iris", 60, 16, "csv"),
    "digits": Case("digits", "digits", 12, 32),
    "digits_subclass": Case(
        "digits_subclass.CustomModel", "digits_tfrecord", 8, 32, suffix="tfrecord"
    ),
    "digits_two_outputs": Case("digits_two_outputs", "digits", 20, 32, metric="digit/accuracy"),
    "breast_cancer": Case("breast_cancer", "breast_cancer", 20, 32, "parquet"),
    "deepfm_ids": Case("deepfm_ids", "criteo", 2, 256, metric="auc"),
    "deepfm_ids-long": Case(
        "deepfm_ids", "criteo", 3, 256, metric="auc", records=120_000, kills=True
    ),
    "deepfm": Case(
        "deepfm",
        "criteo",
        2,
        256,
        "tsv",
        "auc",
        reader_params={"format": "csv", "delimiter": "tab", "header": False},
    ),
    **{
        f"ctr-{optimizer}-{batch}": _ctr(optimizer, batch)
        for optimizer in ("adam", "adagrad")
        for batch in (512, 4096)
    },
    "mnist": Case("mnist", "mnist", 2, 64, records=10_000),
    "mnist_subclass": Case("mnist_subclass.CustomModel", "mnist", 2, 64, records=10_000),
    "cifar10": Case("cifar10", "cifar10", 4, 64, "tfrecord", records=2_500),
    "cifar10_subclass": Case(
        "cifar10_subclass.CustomModel", "cifar10", 4, 64, "tfrecord", records=2_500
    ),
    "resnet20": Case(
        "resnet20", "cifar10", 2, 64, "tfrecord", records=5_000, params={"steps": 158}
    ),
    "resnet50": Case(
        "resnet50", "cifar10", 2, 64, "tfrecord", records=5_000, params={"steps": 158}
    ),
    "census_dnn": Case("census_dnn", "census", 3, 64, "csv", "auc", records=20_000),
    "census_wide_deep": Case("census_wide_deep", "census", 3, 64, "csv", "auc", records=20_000),
    "dcn": Case("dcn", "criteo", 2, 256, metric="auc", records=80_000),
    "xdeepfm": Case("xdeepfm", "criteo", 2, 256, metric="auc", records=80_000),
    "dlrm": Case("dlrm", "criteo", 2, 256, metric="auc", records=80_000),
    "two_tower": Case("two_tower", "ratings", 5, 256, metric="hit_rate", records=60_000),
    "text_cnn": Case("text_cnn", "reviews", 2, 64, "csv", records=20_000),
    "transformer": Case("transformer", "tokens", 2, 64, records=10_000),
}
CHOSEN = os.environ.get("QUALITY_CASES", " ".join(CASES)).split()
SEEDS = [int(seed) for seed in os.environ.get("QUALITY_SEEDS", "1 2 3 4 5").split()]
SYSTEMS = os.environ.get("QUALITY_SYSTEMS", "keras 1 2 4 8 killed joining").split()


def make(case: Case, folder: Path) -> None:
    """Make the data of a case."""
    folder.mkdir()
    if case.data == "planted":
        write(folder, RECORDS)
    elif case.data == "ctr":
        deepfm_data.write(folder)
    else:
        make_data.MAKERS[case.data](folder, case.records)


def steps_of(case: Case, data: Path) -> int:
    reader = open_reader(str(data / f"train.{case.suffix}"), dict(case.reader_params))
    records = sum(source.records for source in reader.sources())
    return case.epochs * -(-records // case.batch)


def settings_of(case: Case, data: Path, seed: int) -> dict[str, Any]:
    """What a peer needs to know."""
    return {
        "model_zoo": str(case.zoo),
        "model_def": case.model_def,
        "params": case.params,
        "reader_params": case.reader_params,
        "train": str(data / f"train.{case.suffix}"),
        "test": str(data / f"test.{case.suffix}"),
        "batch": case.batch,
        "epochs": case.epochs,
        "metric": case.metric,
        "seed": seed,
        "look_steps": max(1, steps_of(case, data) // LOOKS),
        "began_at": time.time(),
    }


def run_keras(case: Case, data: Path, seed: int, *, sums: bool = False) -> Run:
    """Plain Keras in one process. Its clock stands still while it evaluates.

    `sums`: the gradients of an id that comes several times in a batch are added first.
    """
    return run_peer("peer_quality", {**settings_of(case, data, seed), "sums": sums})


def run_parts(case: Case, data: Path, seed: int, parts: int) -> Run:
    """Synchronous steps of so many parts, in one process. Its clock stands still likewise."""
    return run_peer("peer_parts", {**settings_of(case, data, seed), "parts": parts})


def run_peer(module: str, settings: Mapping[str, Any]) -> Run:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", json.dumps(settings)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-2000:]}")
    curve = json.loads(done.stdout.splitlines()[-1])
    return {"metric": curve[-1][2], "curve": curve, "load": os.getloadavg()[0]}


def run_ours(
    case: Case,
    data: Path,
    seed: int,
    workers: int,
    *,
    kills: bool = False,
    joining: int = 0,
    sync: bool | None = None,
) -> Run:
    """A job with default flags on one server; `killed` is how many of its workers were killed.

    `joining`: how many workers more it gets as soon as it trains. `sync`: `--sync` or `--no-sync`.
    """
    steps, began_at = steps_of(case, data), time.time()
    flags: dict[str, Any] = {
        "model_zoo": case.zoo,
        "model_def": case.model_def,
        "training_data": data / f"train.{case.suffix}",
        "validation_data": data / f"test.{case.suffix}",
        "minibatch_size": case.batch,
        "num_epochs": case.epochs,
        "num_workers": workers,
        "evaluation_steps": max(1, steps // LOOKS),
        "seed": seed,
    }
    if case.params:
        flags["model_params"] = json.dumps(dict(case.params))
    if case.reader_params:
        flags["data_reader_params"] = json.dumps(dict(case.reader_params))
    if sync is not None:
        flags["sync"] = sync
    if workers == PACED:
        flags["envs"] = f"PACED_STEP_S={PACE_S}"
    with running(**flags) as job:
        if kills or joining:
            until_it_trains(job)
        if joining:
            job.scale(workers + joining)
        killed = kill_workers(job, seed) if kills else 0
        job.finish(LIMIT_S)
        rows = [json.loads(row) for row in (job.directory / "metrics.jsonl").open()]
    name = case.metric.replace("/", "_")
    curve = [
        (row["version"] / steps, row["at"] - began_at, row["values"][name])
        for row in rows
        if row["kind"] == "evaluation"
    ]
    return {
        "metric": curve[-1][2],
        "curve": curve,
        "load": os.getloadavg()[0],
        "killed": killed,
    }


def until_it_trains(job: RunningJob) -> None:
    def trains() -> bool | None:
        status = job.status()
        return True if status is not None and status["records"]["trained"] > 0 else None

    job.until("it trains", trains)


def kill_workers(job: RunningJob, seed: int) -> int:
    """Kill a random worker every few seconds until the job ends. Others start in their place."""
    return len(
        churn.kill_until_it_ends(
            job, random.Random(seed), every_s=KILL_EVERY_S, victims=churn.live("worker"), most=1000
        )
    )


def measure() -> Figures:
    """Measure each system by case and seed."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in CHOSEN:
            case = CASES[name]
            data = Path(folder) / f"{case.data}-{case.records}"
            if not data.exists():
                make(case, data)
            row = figures[name] = {}
            for system, run in systems(case, data).items():
                row[system] = [run(seed) for seed in SEEDS]
            print_row(name, row)
    return figures


def systems(case: Case, data: Path) -> dict[str, Callable[[int], Run]]:
    """What to run with each seed, by name."""
    made: dict[str, Callable[[int], Run]] = {}
    for name in SYSTEMS:
        if name == "keras":
            made[name] = partial(run_keras, case, data)
        elif name == "sums":
            made["keras, sums"] = partial(run_keras, case, data, sums=True)
        elif name.isdecimal():
            # Only the module of the benchmark can be paced.
            if int(name) != PACED or case.data == "planted":
                made[f"{name} workers"] = partial(run_ours, case, data, workers=int(name))
        elif name.endswith("-parts"):
            parts = int(name.partition("-")[0])
            made[f"{parts} parts"] = partial(run_parts, case, data, parts=parts)
        elif name.endswith("sync"):
            number, _, way = name.partition("-")
            sync = {"sync": True, "async": False}[way]
            said = f"{number} workers, {'--sync' if sync else '--no-sync'}"
            made[said] = partial(run_ours, case, data, workers=int(number), sync=sync)
        elif not case.kills:
            continue
        elif name == "killed":
            made["4 workers, killed"] = partial(run_ours, case, data, workers=4, kills=True)
        elif name == "joining":
            made["1 worker, then 4"] = partial(run_ours, case, data, workers=1, joining=3)
    return made


def print_row(name: str, row: Mapping[str, list[Run]]) -> None:
    """Print mean and standard deviation of each system, and its mean curve."""
    print(name, flush=True)
    for system, runs in row.items():
        values = [run["metric"] for run in runs]
        spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
        killed = sum(run.get("killed", 0) for run in runs)
        loads = [run["load"] for run in runs]
        print(
            f"  {system:18} {mean(values):.4f}{spread}"
            + (f", {killed} killed" if killed else "")
            + f", load {min(loads):.0f} to {max(loads):.0f}"
        )
        # Evaluations of a job may skip one where two are due at once.
        points = min(len(run["curve"]) for run in runs)
        print("    share of the steps, seconds, metric:", flush=True)
        for at in range(-points, 0):
            share, seconds, metric = (
                mean(run["curve"][at][number] for run in runs) for number in range(3)
            )
            print(f"    {share:5.2f} {seconds:7.1f} {metric:.4f}", flush=True)
