"""DeepFM, samples/s: the user's plain Keras module on one server and two workers, against the same model in other systems.

Everything on the same cores, one after the other in one run; medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.deepfm_data import write

ROOT = Path(__file__).parent.parent
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


def trained(job: Path) -> tuple[float, int] | None:
    """When (s) and how many records, from the job's own status."""
    address = job / "master.json"
    if not address.exists():
        return None
    from elasticdl.rpc.master_client import MasterClient

    where = json.loads(address.read_text())
    client = MasterClient(where["address"], where["token"], "cli")
    try:
        return time.perf_counter(), int(client.status()["records"]["trained"])
    finally:
        client.close()


def run_ours(optimizer: str, batch: int, data: Path, workers: int = 2, seconds: float = 12.0) -> float:
    """Records per second in steady state, as the master's ledger counts them: the job is stopped after `seconds` of it."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        command = [
            sys.executable, "-m", "elasticdl.cli.main", "train", "--model-zoo", str(ROOT / "bench/zoo"), "--model-def", "deepfm",
            "--model-params", f"optimizer={optimizer}", "--training-data", str(data), "--num-epochs", "1000",
            "--minibatch-size", str(batch), "--num-workers", str(workers), "--num-ps-pods", "1", "--job-dir", str(job),
            "--records-per-task", str(max(batch * 8, 16_384)),
        ]  # fmt: skip
        log = open(Path(folder) / "log", "w+")  # noqa: SIM115
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            return steady_rate(child, job, seconds, log)
        finally:
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def steady_rate(child: subprocess.Popen, job: Path, seconds: float, log) -> float:
    """Slope of trained records over time, from 4 s after the first ones on."""
    seen: list[tuple[float, int]] = []
    deadline = time.perf_counter() + 120
    while time.perf_counter() < deadline:
        if child.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the job ended by itself:\n{log.read()[-3000:]}")
        point = trained(job)
        if point and point[1] > 0:
            seen.append(point)
            if seen[-1][0] - seen[0][0] > seconds + 4:
                break
        time.sleep(0.5)
    steady = [point for point in seen if point[0] - seen[0][0] > 4]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(steady, steady[4:], strict=False)]
    return statistics.median(rates)


def measure(points=POINTS, rounds: int = 3) -> dict:
    """For each point: median samples/s of each system over `rounds` interleaved rounds."""
    figures: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "deepfm.npz"
        write(data, RECORDS)
        for optimizer, batch in points:
            seen: dict[str, list[float]] = {name: [] for name in ("elasticdl", *PEERS)}
            for _ in range(rounds):
                seen["elasticdl"].append(run_ours(optimizer, batch, data))
                for name, module in PEERS.items():
                    seen[name].append(run_peer(module, optimizer, batch))
            figures[f"{optimizer} {batch}"] = {name: statistics.median(rates) for name, rates in seen.items()}
            print_row(f"{optimizer} {batch}", figures[f"{optimizer} {batch}"])
    return figures


def print_row(point: str, row: dict) -> None:
    ours = row["elasticdl"]
    ratios = "  ".join(f"{ours / row[name]:.2f} x {name} ({row[name]:,.0f})" for name in PEERS)
    print(f"{point:14} elasticdl {ours:10,.0f} samples/s   {ratios}", flush=True)
