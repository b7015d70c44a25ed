"""The workload of all end-to-end figures: DeepFM on synthetic data in Criteo's shape.

13 dense features, 26 fields x 38,461 ids (999,986 in all; Zipf 1.05 within a field), embedding 16 +
wide 1, MLP 128-128.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FIELDS, DENSE, DIM, HIDDEN = 26, 13, 16, (128, 128)
IDS_PER_FIELD = 1_000_000 // FIELDS
VOCABULARY = IDS_PER_FIELD * FIELDS
LEARNING_RATE = {"adam": 1e-3, "adagrad": 1e-2}


def arrays(records: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32[records, DENSE], int64[records, FIELDS], float32[records, 1]."""
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, IDS_PER_FIELD + 1) ** 1.05
    rank = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random((records, FIELDS))).clip(
        0, IDS_PER_FIELD - 1
    )
    shuffled = np.random.default_rng(99).permutation(IDS_PER_FIELD)
    ids = (shuffled[rank] + np.arange(FIELDS) * IDS_PER_FIELD).astype(np.int64)
    dense = rng.standard_normal((records, DENSE)).astype(np.float32)
    labels = (rng.random((records, 1)) < 0.25).astype(np.float32)
    return dense, ids, labels


def write(path: Path, records: int) -> None:
    """Write one .npz file as the jobs' training data."""
    dense, ids, labels = arrays(records)
    np.savez(path, dense=dense, ids=ids, label=labels)


def batches(batch: int, count: int) -> Any:
    """Return an infinite tf.data over arrays in memory: ((dense, ids), labels)."""
    import tensorflow as tf

    dense, ids, labels = arrays(batch * count)
    shaped = (
        (dense.reshape(count, batch, DENSE), ids.reshape(count, batch, FIELDS)),
        labels.reshape(count, batch, 1),
    )
    return tf.data.Dataset.from_tensor_slices(shaped).repeat().prefetch(2)
