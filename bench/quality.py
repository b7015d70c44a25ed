"""The final metric after the same epochs: plain Keras, and jobs with default flags on 1, 2, 4 and 8
workers.

`QUALITY_CASES`, `QUALITY_SEEDS` and `QUALITY_WORKERS` shorten it. Steps of 8 workers take 0.1 s
more, without a processor: as if each had its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeAlias

from bench.jobs import ROOT
from bench.planted_images import write
from model_zoo import make_data

RECORDS = 8192
CRITEO_RECORDS = 30_000
PACED, PACE_S = 8, 0.1
LIMIT_S = 1200.0
Figures: TypeAlias = dict[str, dict[str, list[dict[str, float]]]]


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
    reader_params: Mapping[str, Any] = field(default_factory=dict)


def _cnn(optimizer: str, epochs: int = 6) -> Case:
    params = {"optimizer": optimizer, "steps": epochs * RECORDS // 64}
    return Case("cnn", "planted", epochs, 64, zoo=ROOT / "bench/zoo", params=params)


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
    "deepfm": Case(
        "deepfm",
        "criteo",
        2,
        256,
        "tsv",
        "auc",
        reader_params={"format": "csv", "delimiter": "tab", "header": False},
    ),
}
CHOSEN = os.environ.get("QUALITY_CASES", " ".join(CASES)).split()
SEEDS = [int(seed) for seed in os.environ.get("QUALITY_SEEDS", "1 2 3 4 5").split()]
WORKERS = [int(count) for count in os.environ.get("QUALITY_WORKERS", "1 2 4 8").split()]


def make(name: str, folder: Path) -> None:
    """Make a data set."""
    folder.mkdir()
    if name == "planted":
        write(folder, RECORDS)
    else:
        make_data.MAKERS[name](folder, CRITEO_RECORDS)


def run_keras(case: Case, data: Path, seed: int) -> float:
    """Return the metric of plain Keras in one process."""
    settings = {
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
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.peer_quality", json.dumps(settings)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"plain Keras failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def run_ours(case: Case, data: Path, seed: int, workers: int) -> float:
    """Return the metric of a job with default flags on one server."""
    flags: dict[str, Any] = {
        "model_zoo": case.zoo,
        "model_def": case.model_def,
        "training_data": data / f"train.{case.suffix}",
        "validation_data": data / f"test.{case.suffix}",
        "minibatch_size": case.batch,
        "num_epochs": case.epochs,
        "num_workers": workers,
        "seed": seed,
    }
    if case.params:
        flags["model_params"] = json.dumps(dict(case.params))
    if case.reader_params:
        flags["data_reader_params"] = json.dumps(dict(case.reader_params))
    if workers == PACED:
        flags["envs"] = f"PACED_STEP_S={PACE_S}"
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "elasticdl.cli.main", "train", "--job-dir", str(job)]
        done = subprocess.run(
            [*command, *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"the job failed:\n{done.stderr[-3000:]}")
        metrics = json.loads((job / "status.json").read_text())["metrics"]
        return float(metrics[case.metric.replace("/", "_")])


def measure() -> Figures:
    """Measure metric and seconds by case, system and seed."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in CHOSEN:
            case, data = CASES[name], Path(folder) / CASES[name].data
            if not data.exists():
                make(case.data, data)
            row = figures[name] = {}
            # Only the module of the benchmark can be paced.
            counts = [count for count in WORKERS if count != PACED or case.data == "planted"]
            for workers in (0, *counts):
                for seed in SEEDS:
                    begin_s = time.perf_counter()
                    metric = (
                        run_ours(case, data, seed, workers)
                        if workers
                        else run_keras(case, data, seed)
                    )
                    seconds = round(time.perf_counter() - begin_s, 1)
                    system = f"{workers} workers" if workers else "keras"
                    row.setdefault(system, []).append({"metric": metric, "seconds": seconds})
            print_row(name, row)
    return figures


def print_row(name: str, row: Mapping[str, list[dict[str, float]]]) -> None:
    """Print mean and standard deviation of each system."""
    cells = []
    for system, runs in row.items():
        values = [run["metric"] for run in runs]
        spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
        cells.append(f"{system} {mean(values):.4f}{spread}")
    print(f"{name:18} {'   '.join(cells)}", flush=True)
