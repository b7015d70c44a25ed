"""ElasticDL's third experiment: do elastic runs converge like fixed ones?

The training is real, on this machine. A fixed run has two workers. An elastic one begins with one,
has three from a fifth of its records on, loses one of them to SIGKILL at half, and has two for the
last quarter. DeepFM trains on planted clicks and a small ResNet on planted images, each through a
parameter server, in synchronous steps of two parts, and on a ring. `ELASTICDL3_CASES` and
`ELASTICDL3_SEEDS` choose some.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, final

from bench.jobs import ROOT, RunningJob, running
from elasticdl.job_choices import Strategy
from experiments.figures import Figures
from model_zoo import make_data
from tests import churn

LIMIT_S = 600.0
WORKERS, FEW, MANY = 2, 1, 3


@final
@dataclass(frozen=True, slots=True)
class Case:
    """A module with its data, and the metric to compare."""

    model_def: str
    data: str
    suffix: str
    records: int
    epochs: int
    batch: int
    metric: str
    params: Mapping[str, Any] = field(default_factory=dict)


DEEPFM = Case("deepfm_ids", "criteo", "npz", 30_000, 2, 256, "auc")
RESNET = Case(
    "resnet20", "cifar10", "tfrecord", 1_500, 2, 64, "accuracy", {"blocks": 1, "steps": 38}
)
CASES = {"deepfm": DEEPFM, "resnet": RESNET}
STRATEGIES = {
    "ps": Strategy.PARAMETER_SERVER,
    "ring": Strategy.ALLREDUCE,
}
NAMES = tuple(f"{case}-{strategy}" for case in CASES for strategy in STRATEGIES)
SEEDS = (1, 2, 3)
SMALLER = 2


def run(*, small: bool) -> Figures:
    """Run the cases and seeds that the environment chooses; `small`: the first of each."""
    names = os.environ.get("ELASTICDL3_CASES", NAMES[0] if small else " ".join(NAMES)).split()
    chosen = os.environ.get("ELASTICDL3_SEEDS")
    seeds = [int(seed) for seed in chosen.split()] if chosen else list(SEEDS[: 1 if small else 3])
    with tempfile.TemporaryDirectory() as folder:
        return Figures(more={name: _case(name, Path(folder), seeds, small=small) for name in names})


def _case(name: str, folder: Path, seeds: list[int], *, small: bool) -> dict[str, Any]:
    model, _, strategy = name.partition("-")
    case, data = CASES[model], folder / model
    if small:
        case = replace(case, records=case.records // SMALLER)
    if not data.exists():
        data.mkdir()
        make_data.MAKERS[case.data](data, case.records)
    metrics: dict[str, list[float]] = {"fixed": [], "elastic": []}
    for seed in seeds:
        for kind, values in metrics.items():
            change = _change_workers if kind == "elastic" else None
            began_s = time.monotonic()
            values.append(_metric(case, data, strategy, seed, change))
            took_s = time.monotonic() - began_s
            print(f"{name} {kind} {seed}: {values[-1]:.4f} in {took_s:.0f} s", flush=True)
    return {**metrics, **_compared(metrics["fixed"], metrics["elastic"])}


def _compared(fixed: list[float], elastic: list[float]) -> dict[str, Any]:
    """The difference of the means, and whether it is within two of its standard errors."""
    found: dict[str, Any] = {"difference": mean(elastic) - mean(fixed)}
    if len(fixed) > 1:
        error = ((stdev(fixed) ** 2 + stdev(elastic) ** 2) / len(fixed)) ** 0.5
        found |= {"standard_error": error, "within": abs(found["difference"]) <= 2 * error}
    return found


def _metric(
    case: Case,
    data: Path,
    strategy: str,
    seed: int,
    change: Callable[[RunningJob, int], None] | None,
) -> float:
    flags: dict[str, Any] = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": case.model_def,
        "model_params": json.dumps(dict(case.params)),
        "training_data": data / f"train.{case.suffix}",
        "validation_data": data / f"test.{case.suffix}",
        "distribution_strategy": STRATEGIES[strategy],
        "minibatch_size": case.batch,
        "num_epochs": case.epochs,
        "num_workers": FEW if change else WORKERS,
        "seed": seed,
    }
    if STRATEGIES[strategy] is Strategy.PARAMETER_SERVER:
        # By default an elastic run would keep the steps that one worker chooses.
        flags |= {"sync": True, "grads_to_wait": WORKERS}
    with running(**flags) as job:
        if change is not None:
            change(job, seed)
        job.finish(LIMIT_S)
        rows = [json.loads(row) for row in (job.directory / "metrics.jsonl").open()]
    return next(
        float(row["values"][case.metric]) for row in reversed(rows) if row["kind"] == "evaluation"
    )


def _change_workers(job: RunningJob, seed: int) -> None:
    _until_trained(job, 0.2)
    job.scale(MANY)
    _until_trained(job, 0.5)
    names = _live_workers(job)
    os.kill(job.live_pid(names[seed % len(names)]), signal.SIGKILL)
    _until_trained(job, 0.75)
    job.scale(WORKERS)


def _until_trained(job: RunningJob, share: float) -> None:
    def trained() -> bool | None:
        status = job.status()
        records = status["records"] if status is not None else {"trained": 0, "expected": 0}
        return True if records["trained"] >= share * records["expected"] > 0 else None

    job.until(f"{share:.0%} of the records are trained", trained, LIMIT_S)


def _live_workers(job: RunningJob) -> list[str]:
    def found() -> list[str] | None:
        status = job.status()
        return list(churn.live("worker")(status)) or None if status is not None else None

    return job.until("it has a worker", found)
