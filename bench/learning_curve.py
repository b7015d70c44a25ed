"""How a peer learns: samples/s, and AUC on the test records after parts of one pass.

A peer prints one line of JSON for `end_to_end.py`. Its clock stops while it predicts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.deepfm_data import TRAIN, read

ROUNDS = 16
"""Evaluations in one pass."""
_FIRST_STEPS = 2
_CHUNK_S, _CHUNKS = 2.5, 5
_PREDICTED = 4096


class Peer(Protocol):
    """A model in training."""

    def advance(self, steps: int) -> None:
        """Take the next steps. Returns when all of them are applied."""

    def logits(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[n, 1] of `_PREDICTED` records."""


def report(peer: Peer, batch: int, folder: Path) -> None:
    """Print when the first steps were done, AUC by samples, and samples/s."""
    peer.advance(_FIRST_STEPS)
    first_at = time.time()
    curve = list(_one_pass(peer, batch, folder))
    rate, bytes_per_sample = _rate(peer.advance, batch)
    told = {
        "first_at": first_at,
        "curve": curve,
        "rate": rate,
        "bytes_per_sample": bytes_per_sample,
    }
    print(json.dumps(told))


def loopback_bytes() -> int:
    """All that this network namespace has sent over its loopback so far, by whatever process."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = next(line for line in lines if line.strip().startswith("lo:")).partition(":")[2]
    return int(counts.split()[8])


def _one_pass(peer: Peer, batch: int, folder: Path) -> Iterator[tuple[int, float]]:
    dense, ids, labels = read(folder / "test.npz")
    done, steps = _FIRST_STEPS, TRAIN // batch
    for number in range(1, ROUNDS + 1):
        end = steps * number // ROUNDS
        peer.advance(end - done)
        done = end
        parts = [
            peer.logits(dense[at : at + _PREDICTED], ids[at : at + _PREDICTED])
            for at in range(0, len(labels), _PREDICTED)
        ]
        yield done * batch, auc(labels, np.concatenate(parts))


def auc(labels: NDArray[np.float32], logits: NDArray[np.float32]) -> float:
    """By the metric of the module."""
    from bench.zoo.deepfm import eval_metrics_fn

    metric = eval_metrics_fn()["auc"]
    metric.update_state(labels, logits)
    return float(metric.result())


def _rate(advance: Callable[[int], None], batch: int) -> tuple[float, float]:
    """Median samples/s, and the mean of bytes a sample over the loopback."""

    def seconds(steps: int) -> float:
        begin_s = time.perf_counter()
        advance(steps)
        return time.perf_counter() - begin_s

    steps = max(4, int(_CHUNK_S / (seconds(20) / 20)))
    sent = loopback_bytes()
    rate = statistics.median(steps * batch / seconds(steps) for _ in range(_CHUNKS))
    return rate, (loopback_bytes() - sent) / (_CHUNKS * steps * batch)
