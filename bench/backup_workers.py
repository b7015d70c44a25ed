"""Steps per second with `--sync`: three workers alone, and beside one that is ten times slower,
with a backup worker and without.

Steps wait instead of computing, so that workers do not compete for the processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import ROOT

RECORDS, BATCH, GRADIENTS = int(os.environ.get("BACKUP_RECORDS", "12288")), 16, 3
LIMIT_S = 600.0
ROWS: dict[str, dict[str, Any]] = {
    "3 workers": {"num_workers": 3},
    "4 workers, one slow, 1 backup": {"num_workers": 4, "backup_workers": 1},
    "4 workers, one slow": {"num_workers": 4},
}


def steps_per_s(flags: dict[str, Any], folder: Path) -> float:
    """Return the steps per second of one job, without its start and the last tenth of its data."""
    given = {
        "model_zoo": ROOT / "bench/zoo",
        "model_def": "paced",
        "training_data": folder / "rows.npy",
        "minibatch_size": BATCH,
        "records_per_task": 8 * BATCH,
        "grads_to_wait": GRADIENTS,
        "envs": f"PACED_SLOW={'worker-1' if flags['num_workers'] == 4 else 'none'}",
        **flags,
    }
    job = folder / f"job-{len(list(folder.iterdir()))}"
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "elasticdl.cli.main", "train", "--sync"]
    command += ["--global-batch", "scaled"]
    done = subprocess.run(
        [*command, f"--job-dir={job}", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(
            f"{flags}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"
        )
    rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    steps = RECORDS // (BATCH * GRADIENTS)
    seen = [(row["at"], row["version"]) for row in rows if 0.1 < row["version"] / steps < 0.9]
    (begin_s, first), (end_s, last) = seen[0], seen[-1]
    return float((last - first) / (end_s - begin_s))


def measure() -> dict[str, float]:
    """Run all jobs; print and return the steps per second of each."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = np.random.default_rng(0).standard_normal((RECORDS, 9)).astype(np.float32)
        np.save(folder / "rows.npy", values)
        for what, flags in ROWS.items():
            found[what] = round(steps_per_s(flags, folder), 2)
            print(f"{what}: {found[what]} steps/s", flush=True)
    alone, backed, _ = found.values()
    print(f"with a backup worker: {backed / alone:.2f} of the speed without the slow worker")
    return found


if __name__ == "__main__":
    measure()
