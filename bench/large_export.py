"""Export a table that is larger than the worker's memory: `python -m bench.large_export --gb 3`.

A job touches rows of a table of `--gb`, every one by default, then exports the table. Its worker is
in a memory cgroup (version 1, which needs root) of `--limit-gb`, page cache included. What the
worker had before it was put there counts, too: it is taken off the limit. A process with plain
TensorFlow then loads the export, and a sample of the rows must have the values that training gives.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.jobs import RunningJob, running

DIM = 64
MINIBATCH = 16384
TRAINING_LIMIT_S = 1800.0
SAMPLE = 100_000
_LOADS = """
import hashlib, sys
import numpy as np
import tensorflow as tf
rows = tf.saved_model.load(sys.argv[1]).rows[0][0]
sampled = tf.gather(rows, np.load(sys.argv[2])["ids"]).numpy()
assert not [name for name in sys.modules if name.startswith("elasticdl")]
print(int(tf.shape(rows)[0]), hashlib.sha256(sampled.tobytes()).hexdigest())
"""


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


def status_bytes(pid: int, *keys: str) -> int:
    """The sum of some lines of a process's status; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    wanted = tuple(f"{key}:" for key in keys)
    return 1024 * sum(
        int(line.split()[1]) for line in status.splitlines() if line.startswith(wanted)
    )


def written_bytes(pid: int) -> int:
    """Bytes that a process has sent to disks so far; 0 if it has ended."""
    try:
        counts = Path(f"/proc/{pid}/io").read_text().split()
    except OSError:
        return 0
    return int(counts[counts.index("write_bytes:") + 1])


def limited(job: RunningJob, group: Path, limit_bytes: int) -> int:
    """Put the job's worker into the group as soon as it runs; return its pid."""

    def pid() -> int | None:
        status = job.status()
        ready = status is not None and any(
            one["name"] == "worker-0" and one["where"] for one in status["processes"]
        )
        return job.live_pid("worker-0") if ready else None

    worker = job.until("the worker runs", pid, 600.0, look_s=0.05)
    before = status_bytes(worker, "RssAnon", "RssShmem")
    (group / "memory.limit_in_bytes").write_text(str(limit_bytes - before))
    (group / "cgroup.procs").write_text(str(worker))
    print(
        f"worker-0 had {before / 1e9:.2f} GB when it was limited to {limit_bytes / 1e9:.2f} GB",
        flush=True,
    )
    return worker


def at_s(job: RunningJob, beginning: str) -> float | None:
    """When the first event with a text that begins like this happened."""
    lines = (job.directory / "events.jsonl").read_text().splitlines()
    for event in (json.loads(line) for line in lines if line.endswith("}")):
        if event["text"].startswith(beginning):
            return float(event["at_s"])
    return None


def follow(job: RunningJob, worker: int, limit_s: float) -> tuple[int, int, bool]:
    """Follow the export to its end, or for `limit_s`.

    Returns the peak of the worker's resident and of its anonymous memory, and whether it ended.
    """
    job.until("the export begins", lambda: at_s(job, "exporting the model"), TRAINING_LIMIT_S)
    begin_s, begun_bytes, highest, anonymous = time.monotonic(), written_bytes(worker), 0, 0
    written, lately_s = begun_bytes, 0.0
    while time.monotonic() < begin_s + limit_s:
        if at_s(job, "exported: ") is not None:
            return highest, anonymous, True
        highest = max(highest, status_bytes(worker, "VmRSS"))
        anonymous = max(anonymous, status_bytes(worker, "RssAnon"))
        written, lately_s = written_bytes(worker), time.monotonic() - begin_s
        if job.process.poll() is not None:
            job.finish(1)
        time.sleep(0.5)
    print(
        f"NOT exported within {lately_s:.0f} s: {(written - begun_bytes) / 1e9:.2f} GB written,"
        f" {(written - begun_bytes) / 1e6 / max(lately_s, 1.0):.1f} MB/s"
    )
    return highest, anonymous, False


def check(export: Path, ids: Path, rows: int, touched: int) -> None:
    """Compare a sample of the rows with what training makes of them. Raises RuntimeError."""
    from bench.zoo.large_table import slope

    order = np.load(ids)["ids"]
    trained = np.zeros(rows, bool)
    trained[order[:touched]] = True
    sample = np.random.default_rng(2).integers(0, rows, SAMPLE)
    expected = -np.where(trained[sample], slope(sample), 0)[:, None] * np.arange(DIM)
    # Of -0.0 and 0.0 a server keeps either.
    ours = hashlib.sha256((expected.astype(np.float32) + np.float32(0)).tobytes()).hexdigest()
    np.savez(ids.parent / "sample.npz", ids=sample)
    command = [sys.executable, "-c", _LOADS.replace(".numpy()", ".numpy() + np.float32(0)")]
    done = subprocess.run(
        [*command, str(export), str(ids.parent / "sample.npz")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ids.parent,
    )
    if done.returncode or done.stdout.split() != [str(rows), ours]:
        raise RuntimeError(f"other rows than {rows} with {ours}: {done.stdout}{done.stderr}")
    print(f"plain TensorFlow reads the same values of {SAMPLE:,} rows: sha256 {ours[:16]}…")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=3.0)
    parser.add_argument("--limit-gb", type=float, default=1.0)
    parser.add_argument(
        "--limit-s", type=float, default=3600.0, help="give up an export after this"
    )
    parser.add_argument(
        "--touched", type=float, default=1.0, help="share of the rows that training touches"
    )
    given = parser.parse_args()
    rows = int(given.gb * 1e9) // (4 * DIM)
    touched = int(rows * given.touched)
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-large-export-"))
    ids, export = folder / "ids.npz", folder / "export"
    try:
        np.savez(ids, ids=np.random.default_rng(1).permutation(rows)[:touched])
        with (
            memory_cgroup() as group,
            running(
                model_def="large_table",
                model_params=f"rows={rows};dim={DIM}",
                training_data=ids,
                minibatch_size=MINIBATCH,
                records_per_task=MINIBATCH * 16,
                checkpoint_seconds=0,
                output=export,
            ) as job,
        ):
            worker = limited(job, group, int(given.limit_gb * 1e9))
            highest, anonymous, ended = follow(job, worker, given.limit_s)
            peak = int((group / "memory.max_usage_in_bytes").read_text())
            failures = int((group / "memory.failcnt").read_text())
            if ended:
                job.finish(60)
                begin_s, end_s = at_s(job, "exporting the model"), at_s(job, "exported: ")
                assert begin_s is not None and end_s is not None
                size = sum(one.stat().st_size for one in export.rglob("*"))
                print(
                    f"{rows:,} rows of {DIM} floats ({4 * rows * DIM / 1e9:.2f} GB), {touched:,} of"
                    f" them on the server, exported in {end_s - begin_s:.0f} s:"
                    f" {4 * rows * DIM / 1e6 / (end_s - begin_s):.1f} MB of rows/s;"
                    f" {size / 1e9:.2f} GB of files"
                )
            print(
                f"worker-0 had at most {highest / 1e9:.2f} GB resident while it exported,"
                f" {anonymous / 1e9:.2f} GB of it not of files; the group had at most"
                f" {peak / 1e9:.2f} GB, and reclaimed pages {failures:,} times"
            )
        if not ended:
            sys.exit(1)
        check(export, ids, rows, touched)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
