"""Checkpoints of a large table beside training: bytes of deltas, the pause of the cut, throughput.

`python -m bench checkpoints` has one server with kept memory and one client in this process:
CHECKPOINT_ROWS rows (5,000,000) of dim 16 with Adam, 1 GB on disk, and pushes of 26 x 1,024 ids,
Zipf 1.05, merged before they travel. Checkpoints are written as a job does, into --job-dir's kind
of directory below CHECKPOINT_DIR (the system's temporary directory).

- delta: bytes of a delta over those of a full checkpoint, by pushes since the one before it;
- pause: from the first gate to the open gate;
- throughput: pulls and pushes while a checkpoint is written, beside those before and after it, at
  full speed and with the server's pauses. The control is a thread that only computes: what is lost
  beside it is lost to a busy processor;
- copies: memory of the view for rows that were written since its cut, over that of all rows.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.cluster.local.kept_memory import KeptMemories, path_of
from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.native import _native
from elasticdl.ps.restoring import restore
from elasticdl.ps.saving import ServerPart, save
from elasticdl.rpc.parameters import Int64s, Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId
from elasticdl.tokens import bulk_key, bulk_token

ROWS = int(os.environ.get("CHECKPOINT_ROWS", "5000000"))
DIM, FIELDS, BATCH = 16, 26, 1024
ZIPF = 1.05
PUSHES = (20, 60, 200, 600)
"""Between two checkpoints, for the bytes of deltas."""
ROUNDS = int(os.environ.get("CHECKPOINT_ROUNDS", "5"))
QUIET_S = 3.0
PAUSE_S = 30.0
"""As the master orders it for a checkpoint that nobody waits for."""
KINDS = ("control", "full", "full paced", "delta", "delta paced")
LIMIT_S = 60.0
SPEC = ParametersSpec(
    optimizer=OptimizerSpec(kind=OptimizerKind.ADAM),
    dense=(DenseSpec(path="w", shape=(10_000,)),),
    tables=(TableSpec(name="t", dim=DIM),),
)


class Training:
    """A server with its rows, and a client that pulls and pushes."""

    def __init__(self, memory: str, checkpoints: Path) -> None:
        self.server = _native.Server(0, 1, bulk_key("bench", 0), memory=memory, run="bench")
        address = f"127.0.0.1:{self.server.listen('127.0.0.1')}"
        token = bulk_token(bulk_key("bench", 0), "worker-0")
        self.pool = ServerPool([address], "worker-0", [token])
        self.pool.initialise(SPEC, np.zeros(10_000, np.float32), timeout_s=LIMIT_S)
        self.checkpoints = checkpoints
        self.base: tuple[int, Path, Manifest] | None = None
        self.snapshot = self.sequence = 0
        self.paused_s = self.copies = 0.0
        """Of the newest checkpoint."""
        choose = np.random.default_rng(1)
        self._choose = choose
        self._share = np.cumsum(np.arange(1, ROWS + 1) ** -ZIPF)
        self._place = choose.permutation(ROWS)
        self._batches: list[Int64s] = []

    def make_rows(self) -> None:
        for first in range(0, ROWS, 50_000):
            ids = np.arange(first, min(first + 50_000, ROWS))
            self.pool.pull([ids], timeout_s=LIMIT_S)

    def prepare(self, batches: int) -> None:
        """Draw batches ahead, so that what is measured is the server."""
        while len(self._batches) < batches:
            draws = self._choose.random(FIELDS * BATCH) * self._share[-1]
            self._batches.append(np.unique(self._place[np.searchsorted(self._share, draws)]))

    def step(self) -> None:
        ids = self._batches.pop() if self._batches else self._fresh()
        self.sequence += 1
        pulled = self.pool.pull([ids], timeout_s=LIMIT_S)
        update = Update(
            self.sequence,
            Applied(ShardId(1), 0, self.sequence),
            pulled.versions,
            0.001,
            np.zeros(10_000, np.float32),
            (ids,),
            pulled.rows,
        )
        self.pool.push(update, timeout_s=LIMIT_S)

    def _fresh(self) -> Int64s:
        self.prepare(1)
        return self._batches.pop()

    def cut(self) -> float:
        """What the master has the server do; seconds that pushes have to wait."""
        self.snapshot += 1
        begin_s = time.perf_counter()
        until = self.server.gate(LIMIT_S)
        self.server.cut(self.snapshot, until, LIMIT_S)
        self.server.ungate()
        return time.perf_counter() - begin_s

    def write(self, *, full: bool = False, pause_s: float = 0.0) -> Manifest:
        """Write the last cut as a checkpoint, and make it the base of the next one."""
        making = directories.begin(self.checkpoints)
        base = None if full else self.base
        links = directories.link_base(making, base[1], base[2]) if base else ()
        asked = base[0] if base and links else None
        place = ServerPart(0, 1, "bench")
        part = save(self.server, place, self.snapshot, making, asked, pause_s)
        self.paused_s = part.paused_s
        file = PartFile(name=part.name, bytes=part.bytes, checksum=part.checksum)
        manifest = Manifest(
            version=part.version,
            servers=1,
            parameters=SPEC,
            files=(file,),
            links=links if part.delta else (),
        )
        directory = directories.complete(making, manifest)
        self.server.set_base(self.snapshot)
        with_copies = self.server.statistics()["memory_bytes"]
        self.server.drop(self.snapshot)
        alone = self.server.statistics()["memory_bytes"]
        self.copies = with_copies / alone - 1.0
        self.base = (self.snapshot, directory, manifest)
        directories.prune(self.checkpoints, 1, manifest.version)
        return manifest

    def close(self) -> None:
        self.pool.close()
        self.server.stop()


def measure() -> dict[str, Any]:
    with training() as job:
        job.make_rows()
        job.prepare(100)
        for _ in range(100):
            job.step()
        figures = {"bytes": by_pushes(job), **beside_training(job), "restore": restored(job)}
    show(figures)
    return figures


def by_pushes(job: Training) -> dict[str, Any]:
    """A full checkpoint's bytes, and the share of a delta after so many pushes."""
    job.cut()
    full = job.write(full=True).bytes
    shares = {}
    for pushes in PUSHES:
        job.prepare(pushes)
        for _ in range(pushes):
            job.step()
        job.cut()
        manifest = job.write()
        shares[pushes] = round(manifest.bytes / full, 4) if manifest.links else 1.0
    return {"full": full, "delta": shares}


def beside_training(job: Training) -> dict[str, Any]:
    """Pauses in seconds; steps a second while a checkpoint is written over those around it."""
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for kind in KINDS:
            before = steps_per_s(job, QUIET_S)
            pause_s = job.cut() if kind != "control" else 0.0
            writing = threading.Thread(target=beside, args=(job, kind))
            begin_s = time.perf_counter()
            writing.start()
            during = steps_per_s(job, 0.2, writing)
            took_s = time.perf_counter() - begin_s
            writing.join()
            after = steps_per_s(job, QUIET_S)
            for name, value in (
                ("pause_s", pause_s),
                ("took_s", took_s),
                ("paused_s", job.paused_s),
                ("copies", job.copies),
                ("throughput", during / statistics.mean([before, after])),
            ):
                found.setdefault(f"{kind}_{name}", []).append(round(value, 4))
    return found


def beside(job: Training, kind: str) -> None:
    """What goes on beside the steps."""
    if kind != "control":
        job.write(full="full" in kind, pause_s=PAUSE_S if "paced" in kind else 0.0)
        return
    data, end_s = bytes(16 << 20), time.perf_counter() + QUIET_S
    while time.perf_counter() < end_s:
        zlib.crc32(data)  # without the interpreter lock


def steps_per_s(job: Training, at_least_s: float, until: threading.Thread | None = None) -> float:
    begin_s, steps = time.perf_counter(), 0
    while time.perf_counter() - begin_s < at_least_s or (until is not None and until.is_alive()):
        job.step()
        steps += 1
    return steps / (time.perf_counter() - begin_s)


def restored(job: Training) -> dict[str, float]:
    """Seconds to restore the last checkpoint, a chain or not."""
    assert job.base is not None
    _, directory, manifest = job.base
    server = _native.Server(0, 1, bulk_key("bench", 0))
    begin_s = time.perf_counter()
    restore(server, ServerPart(0, 1, "bench"), directory)
    return {"links": len(manifest.links), "seconds": round(time.perf_counter() - begin_s, 2)}


@contextmanager
def training() -> Iterator[Training]:
    checkpoints = Path(tempfile.mkdtemp(dir=os.environ.get("CHECKPOINT_DIR")))
    kept = KeptMemories()
    descriptor = kept.descriptor(0)
    job = Training("" if descriptor is None else path_of(descriptor), checkpoints)
    try:
        yield job
    finally:
        job.close()
        kept.close()
        shutil.rmtree(checkpoints)


def show(figures: dict[str, Any]) -> None:
    print(
        f"full checkpoint: {figures['bytes']['full'] / 1e9:.2f} GB   restore: {figures['restore']}"
    )
    for pushes, share in figures["bytes"]["delta"].items():
        draws = pushes * FIELDS * BATCH / ROWS
        print(f"delta after {pushes:>4} pushes ({draws:.2f} ids drawn a row): {share:.3f}")
    control = statistics.median(figures["control_throughput"])
    print(f"throughput beside a thread that only computes: {control:.3f}")
    for kind in KINDS[1:]:
        pauses, ratios = figures[f"{kind}_pause_s"], figures[f"{kind}_throughput"]
        took_s, paused_s = (
            statistics.median(figures[f"{kind}_{name}"]) for name in ("took_s", "paused_s")
        )
        print(
            f"{kind:<11} pause max {max(pauses) * 1000:.1f} ms (aim < 100), written in"
            f" {took_s:.2f} s, {took_s - paused_s:.2f} s of it work, copies"
            f" {max(figures[f'{kind}_copies']):.2f}, throughput meanwhile"
            f" {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f} (aim >= 0.9)"
        )
