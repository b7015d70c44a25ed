"""Validation accuracy after the same epochs: plain Keras, and jobs with default flags on 1, 2 and 4
workers.

`QUALITY_MODELS`, `QUALITY_SEEDS` and `QUALITY_EPOCHS` shorten it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.jobs import ROOT
from bench.planted_images import write

RECORDS, BATCH = 8192, 64
MODELS = os.environ.get("QUALITY_MODELS", "momentum sgd adam adagrad").split()
SEEDS = [int(seed) for seed in os.environ.get("QUALITY_SEEDS", "1 2").split()]
EPOCHS = int(os.environ.get("QUALITY_EPOCHS", "6"))
WORKERS = (1, 2, 4)
LIMIT_S = 1200.0


def run_keras(optimizer: str, data: Path, seed: int) -> float:
    """Return the accuracy of plain Keras in one process."""
    command = [sys.executable, "-m", "bench.peer_quality", optimizer, str(data)]
    done = subprocess.run(
        [*command, str(BATCH), str(EPOCHS), str(seed)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"plain Keras failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def run_ours(optimizer: str, data: Path, seed: int, workers: int) -> float:
    """Return the accuracy of a job with default flags on one server."""
    flags: dict[str, Any] = {
        "model_zoo": ROOT / "bench/zoo",
        "model_def": "cnn",
        "model_params": f"optimizer={optimizer};steps={EPOCHS * RECORDS // BATCH}",
        "training_data": data / "train.npz",
        "validation_data": data / "test.npz",
        "minibatch_size": BATCH,
        "num_epochs": EPOCHS,
        "records_per_task": 8 * BATCH,
        "num_workers": workers,
        "seed": seed,
    }
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
        return float(json.loads((job / "status.json").read_text())["metrics"]["accuracy"])


def measure() -> dict[str, dict[str, list[dict[str, float]]]]:
    """Measure accuracy and seconds by optimizer, system and seed."""
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write(data, RECORDS)
        for optimizer in MODELS:
            row = figures[optimizer] = {}
            for seed in SEEDS:
                for workers in (0, *WORKERS):
                    begin_s = time.perf_counter()
                    accuracy = (
                        run_ours(optimizer, data, seed, workers)
                        if workers
                        else run_keras(optimizer, data, seed)
                    )
                    seconds = round(time.perf_counter() - begin_s, 1)
                    name = f"{workers} workers" if workers else "keras"
                    row.setdefault(name, []).append({"accuracy": accuracy, "seconds": seconds})
            print_row(optimizer, row)
    return figures


def print_row(optimizer: str, row: dict[str, list[dict[str, float]]]) -> None:
    cells = (
        f"{name} {' '.join(format(one['accuracy'], '.3f') for one in runs)}"
        for name, runs in row.items()
    )
    print(f"{optimizer:10} {'   '.join(cells)}", flush=True)
