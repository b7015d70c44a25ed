"""Export a table that is larger than the worker's memory: `python -m bench.large_export --gb 3`.

A job touches rows of a table of `--gb`, every one by default, then exports the table. Its worker is
in a memory cgroup (version 1, which needs root) of `--limit-gb`, page cache included. What the
worker had before it was put there counts, too: it is taken off the limit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.jobs import RunningJob, running

DIM = 64
MINIBATCH = 16384
LIMIT_S = 3600.0


@contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A cgroup of its own below that of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line.rpartition(":")[2] for line in lines if ":memory:" in line)
    group = Path(f"/sys/fs/cgroup/memory{own}") / f"elasticdl-export-{time.time_ns()}"
    group.mkdir()
    try:
        yield group
    finally:
        group.rmdir()


def resident_bytes(pid: int) -> int:
    """Anonymous and shared memory that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * sum(
        int(line.split()[1])
        for line in status.splitlines()
        if line.startswith(("RssAnon:", "RssShmem:"))
    )


def limited(job: RunningJob, group: Path, limit_bytes: int) -> None:
    """Put the job's worker into the group as soon as it runs."""

    def pid() -> int | None:
        status = job.status()
        ready = status is not None and any(
            one["name"] == "worker-0" and one["where"] for one in status["processes"]
        )
        return job.live_pid("worker-0") if ready else None

    worker = job.until("the worker runs", pid, 600.0, look_s=0.05)
    before = resident_bytes(worker)
    (group / "memory.limit_in_bytes").write_text(str(limit_bytes - before))
    (group / "cgroup.procs").write_text(str(worker))
    print(f"worker-0 had {before / 1e9:.2f} GB when it was limited to {limit_bytes / 1e9:.2f} GB")


def exporting_s(job: RunningJob) -> float:
    """How long the export took, from the job's events."""
    lines = (job.directory / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (begun,) = [one["at_s"] for one in events if one["text"] == "exporting the model"]
    (ended,) = [one["at_s"] for one in events if one["text"].startswith("exported: ")]
    return float(ended - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=3.0)
    parser.add_argument("--limit-gb", type=float, default=1.0)
    parser.add_argument(
        "--touched", type=float, default=1.0, help="share of the rows that training touches"
    )
    given = parser.parse_args()
    rows = int(given.gb * 1e9) // (4 * DIM)
    touched = int(rows * given.touched)
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-large-export-"))
    try:
        np.savez(folder / "ids.npz", ids=np.random.default_rng(1).permutation(rows)[:touched])
        with (
            memory_cgroup() as group,
            running(
                model_def="large_table",
                model_params=f"rows={rows};dim={DIM}",
                training_data=folder / "ids.npz",
                minibatch_size=MINIBATCH,
                records_per_task=MINIBATCH * 16,
                checkpoint_seconds=0,
                output=folder / "export",
            ) as job,
        ):
            limited(job, group, int(given.limit_gb * 1e9))
            job.finish(LIMIT_S)
            peak = int((group / "memory.max_usage_in_bytes").read_text())
            failures = int((group / "memory.failcnt").read_text())
            size = sum(one.stat().st_size for one in (folder / "export").rglob("*"))
            print(
                f"{rows:,} rows of {DIM} floats ({4 * rows * DIM / 1e9:.2f} GB), {touched:,} of"
                f" them on the server, exported in"
                f" {exporting_s(job):.0f} s: {size / 1e9:.2f} GB; the group had at most"
                f" {peak / 1e9:.2f} GB, and reclaimed pages {failures:,} times"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
