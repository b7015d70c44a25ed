"""What two workers exchange with one server in DeepFM's steps, without training.

They pull and push random values, and each pull overlaps the push of the step before.

The link binds it also on a machine whose cores have other work. Part of `python -m bench network`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import numpy as np

from bench.deepfm_data import DENSE, DIM, FIELDS, HIDDEN, arrays
from bench.learning_curve import loopback_bytes
from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.job_choices import WirePrecision
from elasticdl.native import _native
from elasticdl.rpc.parameters import Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId
from elasticdl.tokens import bulk_key, bulk_token

WAYS = {
    "plain": (WirePrecision.FLOAT32, False),
    "packed": (WirePrecision.FLOAT32, True),
    "float32": (WirePrecision.FLOAT32, None),
    "bfloat16": (WirePrecision.BFLOAT16, None),
    "auto": (WirePrecision.AUTO, None),
}
"""The precision, and whether frames of every bit are packed; None: by measured time."""
_TOKEN, _LIMIT_S, _STEPS, _WORKERS = "token", 60.0, 8, 2
_WIDTHS = (FIELDS * DIM + DENSE, *HIDDEN, 1)
_WEIGHTS = sum(a * b + b for a, b in pairwise(_WIDTHS)) + DENSE
SPEC = ParametersSpec(
    optimizer=OptimizerSpec(kind=OptimizerKind.ADAM),
    dense=(DenseSpec(path="weights", shape=(_WEIGHTS,)),),
    tables=(TableSpec(name="vectors", dim=DIM, seed=1), TableSpec(name="wide", dim=1, seed=2)),
)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Over `seconds`."""

    samples_per_s: float
    bytes_per_sample: float
    mbit_per_s: float


def measure(way: str, batch: int, seconds: float) -> Exchanged:
    """Run two workers for `seconds`, after as long again in which they choose how frames travel."""
    updates = _updates(batch)
    with ExitStack() as stack:
        address = stack.enter_context(_server())
        workers = [_Worker(address, number, way, updates) for number in range(_WORKERS)]
        for worker in workers:
            stack.callback(worker.stop)
            worker.start()
        time.sleep(seconds)
        began_s, steps, sent = time.perf_counter(), sum(w.steps for w in workers), loopback_bytes()
        time.sleep(seconds)
        took_s = time.perf_counter() - began_s
        samples = (sum(worker.steps for worker in workers) - steps) * batch
        moved = loopback_bytes() - sent
    return Exchanged(samples / took_s, moved / samples, moved * 8e-6 / took_s)


@contextmanager
def _server() -> Iterator[str]:
    server = _native.Server(0, 1, bulk_key(_TOKEN, 0))
    try:
        yield f"127.0.0.1:{server.listen('127.0.0.1')}"
    finally:
        server.stop()


def _updates(batch: int) -> list[Update]:
    """A few steps, with gradients as small as real ones."""
    random, records = np.random.default_rng(0), arrays(batch * _STEPS)[1]

    def gradient(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return random.normal(0, 1e-3, shape).astype(np.float32)

    updates = []
    for first in range(0, len(records), batch):
        ids = np.unique(records[first : first + batch])
        rows = gradient(len(ids), DIM), gradient(len(ids), 1)
        applied = Applied(ShardId(0), 0, 0)
        updates.append(Update(0, applied, (0,), 1e-3, gradient(_WEIGHTS), (ids, ids), rows))
    return updates


@final
class _Worker:
    """Two threads: one pulls for the next step, the other pushes the last one."""

    def __init__(self, address: str, number: int, way: str, updates: list[Update]) -> None:
        precision, packed = WAYS[way]
        name = f"worker-{number}"
        token = bulk_token(bulk_key(_TOKEN, 0), name)
        self._pool = ServerPool([address], name, [token], precision=precision)
        if packed is not None:
            self._pool.pack(always=packed)
        weights = np.random.default_rng(1).normal(0, 0.05, _WEIGHTS).astype(np.float32)
        self._pool.initialise(SPEC, weights, timeout_s=_LIMIT_S)
        self._updates = updates
        self._pulled, self._free = threading.Semaphore(0), threading.Semaphore(2)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._pull, self._push)]
        self.steps = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(_LIMIT_S)
        self._pool.close()

    def _pull(self) -> None:
        step = 0
        while not self._stopped.is_set():
            if self._free.acquire(timeout=0.1):
                self._pool.pull(self._updates[step % _STEPS].ids, timeout_s=_LIMIT_S)
                self._pulled.release()
                step += 1

    def _push(self) -> None:
        while not self._stopped.is_set():
            if self._pulled.acquire(timeout=0.1):
                update = replace(self._updates[self.steps % _STEPS], sequence=self.steps + 1)
                self._pool.push(update, timeout_s=_LIMIT_S)
                self.steps += 1
                self._free.release()
