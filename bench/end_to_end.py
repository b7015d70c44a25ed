"""DeepFM: the user's plain Keras module on one server and two workers, against the same model in
other systems.

Everything on the same cores, one after the other in one run; medians. Samples/s; AUC after one
pass; and the seconds until AUC is `SHARE` of what plain Keras has after the pass. `E2E_ROUNDS`,
`E2E_POINTS` and `E2E_RECORDS` shorten it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from bench.deepfm_data import TRAIN, write
from bench.jobs import ROOT, RunningJob, running
from bench.learning_curve import ROUNDS

POINTS = [("adam", 512), ("adam", 4096), ("adagrad", 512), ("adagrad", 4096)]
PEERS = {"keras_fit": "bench.peer_keras", "pss": "bench.peer_pss", "by_hand": "bench.peer_loop"}
AIMS = {"pss": 1.2, "by_hand": 0.8}
SHARE = 0.98
Row: TypeAlias = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one system."""

    rate: float
    """Samples/s."""
    first_s: float
    """From the start of the first process to the first steps."""
    curve: tuple[tuple[int, float], ...]
    """(samples, AUC)."""
    known_s: tuple[float, ...] = ()
    """Of a job: when each AUC was known, from its start. Evaluation takes part of that."""
    bytes_per_sample: float = 0.0
    """Of a peer: over the loopback, with what other processes send there."""
    in_steps: bool = False
    """Of a job: whether its workers trained in synchronous steps."""
    overlaps: bool = True
    """Whether its pass overlapped steps with updates, as a longer job does."""
    pass_rate: float = 0.0
    """Samples/s of the pass, if it did not; 0: `rate`."""

    @property
    def auc(self) -> float:
        return self.curve[-1][1]

    def samples_to(self, auc: float) -> float:
        """Between two evaluations: in proportion. Infinite if it never has that AUC."""
        before = (0, 0.5)
        for point in self.curve:
            if point[1] >= auc:
                share = (auc - before[1]) / (point[1] - before[1])
                return before[0] + share * (point[0] - before[0])
            before = point
        return float("inf")

    def seconds_to(self, auc: float) -> float:
        """Of training alone."""
        return self.samples_to(auc) / (self.pass_rate or self.rate)

    def seconds_known(self, auc: float) -> float:
        """From the start of the first process until this AUC is known."""
        if not self.known_s:
            return self.first_s + self.seconds_to(auc)
        found = [s for (_, one), s in zip(self.curve, self.known_s, strict=True) if one >= auc]
        return found[0] if found else float("inf")


def run_peer(module: str, optimizer: str, batch: int, folder: Path) -> Run:
    command = [sys.executable, "-m", module, optimizer, str(batch), str(folder)]
    began_at = time.time()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    curve = tuple((samples, auc) for samples, auc in told["curve"])
    return Run(
        told["rate"],
        told["first_at"] - began_at,
        curve,
        bytes_per_sample=told["bytes_per_sample"],
    )


def run_ours(optimizer: str, batch: int, folder: Path) -> Run:
    """One job for AUC, and one for the rate, which is longer: it trains as the first one chose.

    A third one has the rate of a pass that is too short to overlap.
    """
    data = folder / "train.npz"
    learned = learn(optimizer, batch, folder, 0.0)
    steady = rate(optimizer, batch, data, sync=learned.in_steps)
    alone = 0.0 if learned.overlaps else rate(optimizer, batch, data, sync=False, max_staleness=0)
    return replace(learned, rate=steady, pass_rate=alone)


def flags(optimizer: str, batch: int, data: Path, workers: int) -> dict[str, Any]:
    return {
        "model_def": "deepfm",
        "model_params": f"optimizer={optimizer}",
        "training_data": data,
        "minibatch_size": batch,
        "num_workers": workers,
        "num_ps_pods": 1,
        "records_per_task": max(batch * 8, 16_384),
    }


def rate(
    optimizer: str, batch: int, data: Path, *, sync: bool, seconds: float = 12.0, **more: Any
) -> float:
    """Records per second of two workers in steady state, as the master's ledger counts them: the
    job is stopped after `seconds` of it. `more`: flags of the job.
    """
    with running(**flags(optimizer, batch, data, 2), num_epochs=1000, sync=sync, **more) as job:
        return steady_rate(job, seconds)


def steady_rate(job: RunningJob, seconds: float) -> float:
    """Return records per second, from 4 s after the first trained record.

    It is the slope of a line through all looks: workers report every two seconds, so differences
    between two looks come in steps.
    """
    seen: list[tuple[float, int]] = []

    def enough() -> bool | None:
        status = job.status()
        if status is not None and status["records"]["trained"] > 0:
            seen.append((time.perf_counter(), int(status["records"]["trained"])))
        return True if seen and seen[-1][0] - seen[0][0] > seconds + 4 else None

    job.until("it had trained long enough", enough, look_s=0.25)
    steady = [point for point in seen if point[0] - seen[0][0] > 4]
    times_s, records = zip(*steady, strict=True)
    return statistics.linear_regression(times_s, records).slope


def learn(
    optimizer: str, batch: int, folder: Path, steady: float, workers: int = 2, **more: Any
) -> Run:
    """One pass, evaluated as often as the others. `more`: flags of the job."""
    began_at = time.time()
    with running(
        **flags(optimizer, batch, folder / "train.npz", workers),
        **more,
        validation_data=folder / "test.npz",
        evaluation_steps=TRAIN // batch // ROUNDS,
    ) as job:
        job.finish(600)
        rows = [json.loads(row) for row in (job.directory / "metrics.jsonl").open()]
        steps = json.loads((job.directory / "preflight.json").read_text())["steps"]
    first_at = next(row["at"] for row in rows if row["kind"] == "training")
    rounds = [row for row in rows if row["kind"] == "evaluation"]
    return Run(
        steady,
        first_at - began_at,
        tuple((row["version"] * batch, row["values"]["auc"]) for row in rounds),
        tuple(row["at"] - began_at for row in rounds),
        in_steps=steps["sync"],
        overlaps=steps["max_staleness"] is None,
    )


def measure() -> dict[str, Row]:
    """For each point and system: medians over interleaved rounds."""
    rounds = int(os.environ.get("E2E_ROUNDS", "3"))
    points = [POINTS[int(number)] for number in os.environ.get("E2E_POINTS", "0 1 2 3").split()]
    figures: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        for optimizer, batch in points:
            runs: dict[str, list[Run]] = {name: [] for name in ("elasticdl", *PEERS)}
            for _ in range(rounds):
                runs["elasticdl"].append(run_ours(optimizer, batch, folder))
                for name, module in PEERS.items():
                    runs[name].append(run_peer(module, optimizer, batch, folder))
            row = figures[f"{optimizer} {batch}"] = medians(runs)
            print_row(f"{optimizer} {batch}", row)
    return figures


def medians(runs: Mapping[str, Sequence[Run]]) -> Row:
    aim = SHARE * statistics.median(run.auc for run in runs["keras_fit"])
    row: Row = {}
    for name, found in runs.items():
        figures = {
            "samples_per_s": [run.rate for run in found],
            "auc": [run.auc for run in found],
            "samples_to_aim": [run.samples_to(aim) for run in found],
            "seconds_to_aim": [run.seconds_to(aim) for run in found],
            "seconds_with_start": [run.seconds_known(aim) for run in found],
        }
        row[name] = {what: statistics.median(values) for what, values in figures.items()}
    row["aim"] = {"auc": aim}
    return row


def print_row(point: str, row: Row) -> None:
    print(f"{point}, to AUC {row['aim']['auc']:.4f}", flush=True)
    for name in ("elasticdl", *PEERS):
        one = row[name]
        print(
            f"  {name:10} {one['samples_per_s']:9,.0f} samples/s   AUC {one['auc']:.4f}"
            f"   {one['seconds_to_aim']:6.2f} s ({one['samples_to_aim']:9,.0f} samples)"
            f"   {one['seconds_with_start']:6.2f} s with start",
            flush=True,
        )
