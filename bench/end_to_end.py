"""DeepFM, samples/s: the user's plain Keras module on one server and two workers, against the same
model in other systems.

Everything on the same cores, one after the other in one run; medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.deepfm_data import write
from bench.jobs import ROOT, RunningJob, running

RECORDS = 262_144
POINTS = [("adam", 512), ("adam", 4096), ("adagrad", 512), ("adagrad", 4096)]
PEERS = {"keras_fit": "bench.peer_keras", "pss": "bench.peer_pss", "by_hand": "bench.peer_loop"}
AIMS = {"pss": 1.2, "by_hand": 0.8}


def run_peer(module: str, optimizer: str, batch: int) -> float:
    command = [sys.executable, "-m", module, optimizer, str(batch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def run_ours(
    optimizer: str, batch: int, data: Path, workers: int = 2, seconds: float = 12.0
) -> float:
    """Records per second in steady state, as the master's ledger counts them: the job is stopped
    after `seconds` of it.
    """
    with running(
        model_def="deepfm",
        model_params=f"optimizer={optimizer}",
        training_data=data,
        num_epochs=1000,
        minibatch_size=batch,
        num_workers=workers,
        num_ps_pods=1,
        records_per_task=max(batch * 8, 16_384),
    ) as job:
        return steady_rate(job, seconds)


def steady_rate(job: RunningJob, seconds: float) -> float:
    """Return records per second, from 4 s after the first trained record."""
    seen: list[tuple[float, int]] = []

    def enough() -> bool | None:
        status = job.status()
        if status is not None and status["records"]["trained"] > 0:
            seen.append((time.perf_counter(), int(status["records"]["trained"])))
        return True if seen and seen[-1][0] - seen[0][0] > seconds + 4 else None

    job.until("it had trained long enough", enough, look_s=0.5)
    steady = [point for point in seen if point[0] - seen[0][0] > 4]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(steady, steady[4:], strict=False)]
    return statistics.median(rates)


def measure(
    points: Sequence[tuple[str, int]] = POINTS, rounds: int = 3
) -> dict[str, dict[str, float]]:
    """For each point: median samples/s of each system over `rounds` interleaved rounds."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "deepfm.npz"
        write(data, RECORDS)
        for optimizer, batch in points:
            seen: dict[str, list[float]] = {name: [] for name in ("elasticdl", *PEERS)}
            for _ in range(rounds):
                seen["elasticdl"].append(run_ours(optimizer, batch, data))
                for name, module in PEERS.items():
                    seen[name].append(run_peer(module, optimizer, batch))
            figures[f"{optimizer} {batch}"] = {
                name: statistics.median(rates) for name, rates in seen.items()
            }
            print_row(f"{optimizer} {batch}", figures[f"{optimizer} {batch}"])
    return figures


def print_row(point: str, row: dict[str, float]) -> None:
    ours = row["elasticdl"]
    ratios = "  ".join(f"{ours / row[name]:.2f} x {name} ({row[name]:,.0f})" for name in PEERS)
    print(f"{point:14} elasticdl {ours:10,.0f} samples/s   {ratios}", flush=True)
