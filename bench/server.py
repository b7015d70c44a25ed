"""A server process and one Python client over loopback: 1,000,000 rows of dim 16, distinct random
ids. One server keeps its memory beyond its process, as on one machine, and the other does not; they
take turns.

The figures are set against those of another server, GO_SERVER: it needs Go, so it is not run here.
"""

from __future__ import annotations

import asyncio
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.cluster.local.kept_memory import KeptMemories, path_of
from elasticdl.cluster.role_environment import KEPT_MEMORY
from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.native import _native
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.parameters import Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.authority import Authority
from elasticdl.tls.contexts import server_context
from elasticdl.tokens import bulk_key, bulk_token, proof_to_master
from tests.served_calls import ServedCalls

ROOT = Path(__file__).parent.parent
ROWS, DIM = 1_000_000, 16
SIZES = (1_000, 10_000, 50_000)
DENSE = 6_500_000
LIMIT_S = 60.0
MEASURE_S = float(os.environ.get("ELASTICDL_BENCH_SECONDS", "2"))
GO_SERVER = {
    "pull": {1_000: 2.2, 10_000: 2.9, 50_000: 2.5},
    "push adam": {1_000: 0.97, 10_000: 1.09, 50_000: 1.10},
    "push adagrad": {1_000: 1.7, 10_000: 1.4, 50_000: 1.4},
}
"""Million rows/s, by the number of ids: the Go and Eigen parameter server of the first ElasticDL
(github.com/sql-machine-learning/elasticdl),
one server and one lean client over loopback, 1,000,000 rows of dim 16. Measured in November 2026 on
2 cores (AMD Zen 5), 24 GiB.
"""
AIMS = {"pull": 4.0, "push adam": 6.0, "push adagrad": 6.0}
MEMORY_AIM = 1.25
KEPT = ", kept"
KEPT_AIM = 0.95
"""Of the throughput without kept memory."""


class Master:
    """The part of a master that a server needs to start."""

    def __init__(self, authority: Authority | None) -> None:
        self._authority = authority
        self.attached: queue.Queue[str] = queue.Queue()
        self.over = threading.Event()
        flags = {"model_zoo": "z", "model_def": "m", "training_data": "t"}
        self._job = JobSpec.from_flags(Action.TRAIN, flags).model_dump_json()

    async def Attach(self, request: Any, call: Any) -> Any:
        if request.bulk_address:
            self.attached.put(request.bulk_address)
        certificate = (
            self._authority.certify(request.public_key, ["ps-0"])
            if self._authority is not None and request.public_key
            else ""
        )
        key = bulk_key("bench", 0)
        return pb.AttachReply(
            term=1,
            heartbeat_s=2.0,
            job=self._job,
            bulk_tokens=[key],
            certificate=certificate,
            places=1,
        )

    async def Report(self, request: Any, call: Any) -> Any:
        return pb.ReportReply()

    async def Orders(self, request: Any, call: Any) -> AsyncGenerator[Any]:
        await asyncio.to_thread(self.over.wait)
        yield pb.Order(finish=pb.Done())


@contextmanager
def server_process(
    authority: Authority | None = None, *, memory: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a real server; yields its address and process. `authority` None: no TLS.

    `memory` is the descriptor of the file that keeps its memory; None: it is private.
    """
    master = Master(authority)
    context = None
    if authority is not None:
        certified = authority.certified_key([MASTER_NAME])
        context = server_context(certified.certificate, certified.key)
    proof = proof_to_master("bench")
    served = ServedCalls(master, lambda caller: proof, context)
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ,
            "ELASTICDL_MASTER": served.address,
            "ELASTICDL_TOKEN": "bench",
            "ELASTICDL_PROCESS": "ps-0",
            "ELASTICDL_JOB_DIR": directory,
            "ELASTICDL_AUTHORITY": authority.certificate if authority is not None else "",
            KEPT_MEMORY: "" if memory is None else path_of(memory),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.ps.main"],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.DEVNULL,
            pass_fds=() if memory is None else (memory,),
        )
        try:
            yield master.attached.get(timeout=LIMIT_S), process
        finally:
            process.kill()
            process.wait()
            master.over.set()
            served.close()


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def timed(call: Callable[[], object], at_least_s: float = MEASURE_S) -> list[float]:
    """Return the seconds of each call."""
    return in_turns({"": call}, at_least_s)[""]


def in_turns(
    calls: Mapping[str, Callable[[], object]], at_least_s: float = MEASURE_S
) -> dict[str, list[float]]:
    """Return the seconds of each call, by name. They take turns: all meet the same noise."""
    for call in calls.values():
        for _ in range(3):
            call()
    durations: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + at_least_s * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            durations[name].append(time.perf_counter() - begin)
    return durations


class Client:
    """Pulls and pushes random rows of one table, or the dense vector."""

    def __init__(
        self,
        address: str,
        optimizer: OptimizerSpec,
        dense: int,
        authority: Authority | None = None,
        kept_bytes: int = 0,
    ) -> None:
        token = bulk_token(bulk_key("bench", 0), "worker-0")
        trusted = authority.certificate if authority is not None else None
        self.pool = ServerPool(
            [address], "worker-0", [token], authority=trusted, kept_bytes=kept_bytes
        )
        spec = ParametersSpec(
            optimizer=optimizer,
            dense=(DenseSpec(path="w", shape=(dense,)),),
            tables=(TableSpec(name="t", dim=DIM, seed=1),),
        )
        self.pool.initialise(spec, np.zeros(dense, np.float32), timeout_s=LIMIT_S)
        self._choose = np.random.default_rng(0)
        self._sequence = 0
        self._none = (np.zeros(0, np.int64),)

    def fill(self) -> float:
        """Touch every row for the first time; return the seconds."""
        order = self._choose.permutation(ROWS).astype(np.int64)
        begin = time.perf_counter()
        for part in np.array_split(order, 50):
            self.pool.pull([part], dense=False, timeout_s=LIMIT_S)
        return time.perf_counter() - begin

    def batches(self, size: int) -> Iterator[np.ndarray]:
        made = [self._choose.choice(ROWS, size, replace=False).astype(np.int64) for _ in range(16)]
        while True:
            yield from made

    def pull(self, size: int) -> Callable[[], object]:
        batches = self.batches(size)
        return lambda: self.pool.pull([next(batches)], dense=False, timeout_s=LIMIT_S)

    def push(self, size: int) -> Callable[[], object]:
        batches = self.batches(size)
        gradients = (self._choose.normal(size=(size, DIM)).astype(np.float32),)
        return lambda: self._push(None, (next(batches),), gradients)

    def dense_pull(self) -> Callable[[], object]:
        return lambda: self.pool.pull(self._none, timeout_s=LIMIT_S)

    def dense_push(self) -> Callable[[], object]:
        gradient = self._choose.normal(size=DENSE).astype(np.float32)
        nothing = (np.zeros((0, DIM), np.float32),)
        return lambda: self._push(gradient, self._none, nothing)

    def _push(
        self,
        dense: np.ndarray | None,
        ids: tuple[np.ndarray, ...],
        gradients: tuple[np.ndarray, ...],
    ) -> None:
        self._sequence += 1
        applied = Applied(ShardId(0), 0, self._sequence)
        self.pool.push(
            Update(self._sequence, applied, (self._sequence - 1,), 0.01, dense, ids, gradients),
            timeout_s=LIMIT_S,
        )


def figures_of(durations: list[float], size: int, row_bytes: int) -> dict[str, float]:
    ordered = sorted(durations)
    return {
        "million_rows_per_s": size * len(durations) / sum(durations) / 1e6,
        "megabytes_per_s": size * row_bytes * len(durations) / sum(durations) / 1e6,
        "p50_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
    }


@contextmanager
def clients(
    optimizer: OptimizerSpec, dense: int, memory: int | None
) -> Iterator[dict[str, tuple[Client, Any]]]:
    """A client and its server's process for each kind of memory, by the name of the kind."""
    with ExitStack() as stack:
        made = {}
        for kind, where in (("", None), (KEPT, memory)):
            address, process = stack.enter_context(server_process(memory=where))
            made[kind] = Client(address, optimizer, dense), process
            stack.callback(made[kind][0].pool.close)
        yield made


def measure() -> dict[str, Any]:
    """Both optimizers, one after the other, and a dense vector of 26 MB; each with servers of its
    own.
    """
    results: dict[str, Any] = {}
    for kind, slots in ((OptimizerKind.ADAM, 2), (OptimizerKind.ADAGRAD, 1)):
        memories = KeptMemories()
        kept = memories.descriptor(0)
        with clients(OptimizerSpec(kind=kind), 1, kept) as made:
            for which, (client, process) in made.items():
                raw = ROWS * DIM * 4 * (1 + slots)
                results[f"memory {kind}{which}"] = memory(client, process, raw)
            for size in SIZES:
                works = ("pull", "push") if kind is OptimizerKind.ADAM else ("push",)
                for work in works:
                    name = work if work == "pull" else f"push {kind}"
                    calls = {
                        which: getattr(client, work)(size) for which, (client, _) in made.items()
                    }
                    for which, durations in in_turns(calls).items():
                        figures = figures_of(durations, size, DIM * 4)
                        results[f"{name} {size}{which}"] = compared(name, size, figures)
            if kept is not None:
                results[f"take on {kind}"] = taken_on(made[KEPT][1], path_of(kept))
        memories.close()
    memories = KeptMemories()
    with clients(OptimizerSpec(kind=OptimizerKind.ADAM), DENSE, memories.descriptor(0)) as made:
        for name, work in (("dense pull", "dense_pull"), ("dense push adam", "dense_push")):
            calls = {which: getattr(client, work)() for which, (client, _) in made.items()}
            for which, durations in in_turns(calls).items():
                results[f"{name}{which}"] = figures_of(durations, DENSE, 4)
    memories.close()
    show(results)
    return results


def taken_on(process: subprocess.Popen[bytes], path: str) -> dict[str, float]:
    """Kill a server, and take its memory on, as the next process does."""
    process.kill()
    process.wait()
    server = _native.Server(0, 1, "bench", memory=path)
    begin = time.perf_counter()
    assert server.take_on(), server.discarded
    took_s = time.perf_counter() - begin
    return {"take_on_ms": took_s * 1e3, "rows": server.statistics()["rows"]}


def memory(client: Client, process: subprocess.Popen[bytes], raw: int) -> dict[str, float]:
    """Return the process's growth by creating every row, and its total memory."""
    before = resident_bytes(process)
    fill_s = client.fill()
    after = resident_bytes(process)
    return {
        "raw_bytes": raw,
        "grown_bytes": after - before,
        "ratio": (after - before) / raw,
        "bytes_per_row": (after - before) / ROWS,
        "process_bytes_before_rows": before,
        "process_ratio": after / raw,
        "first_touch_million_rows_per_s": ROWS / fill_s / 1e6,
    }


def compared(work: str, size: int, figures: dict[str, float]) -> dict[str, float]:
    return {
        **figures,
        "times_the_go_server": figures["million_rows_per_s"] / GO_SERVER[work][size],
        "aim": AIMS[work],
    }


def show(results: dict[str, Any]) -> None:
    print(
        f"{'':22}{'M rows/s':>10}{'MB/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'x Go server':>12}{'aim':>6}"
        f"{'kept':>10}{'x':>6}{'p99 ms':>9}"
    )
    for name, row in results.items():
        if "p50_ms" not in row or name.endswith(KEPT):
            continue
        ratio = f"{row['times_the_go_server']:12.1f}{row['aim']:6.0f}" if "aim" in row else ""
        kept = results[name + KEPT]
        share = row["p50_ms"] / kept["p50_ms"]
        print(
            f"{name:22}{row['million_rows_per_s']:10.2f}{row['megabytes_per_s']:9.0f}"
            f"{row['p50_ms']:9.3f}{row['p99_ms']:9.3f}{ratio:18}"
            f"{kept['million_rows_per_s']:10.2f}{share:6.2f}{kept['p99_ms']:9.3f}"
        )
    print(f"kept: with memory that outlives the server; x: of the median time, aim {KEPT_AIM}")
    for name, row in results.items():
        if "take_on_ms" in row:
            print(
                f"{name}: {row['rows']:,.0f} rows of a killed server in {row['take_on_ms']:.1f} ms"
            )
        if "ratio" in row:
            print(
                f"{name}: {row['bytes_per_row']:.0f} bytes a row, {row['ratio']:.3f} x raw (aim"
                f" {MEMORY_AIM}; {row['process_ratio']:.2f} with the process itself); first touch"
                f" {row['first_touch_million_rows_per_s']:.2f} M rows/s"
            )


if __name__ == "__main__":
    measure()
