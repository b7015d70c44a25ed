"""The workload of all end-to-end figures: DeepFM on synthetic data in Criteo's shape.

13 dense features, 26 fields x 38,461 ids (999,986 in all; Zipf 1.05 within a field), embedding 16 +
wide 1, MLP 128-128. A planted logistic model gives the labels: each id and each dense feature has a
weight.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FIELDS, DENSE, DIM, HIDDEN = 26, 13, 16, (128, 128)
IDS_PER_FIELD = 1_000_000 // FIELDS
VOCABULARY = IDS_PER_FIELD * FIELDS
LEARNING_RATE = {"adam": 1e-3, "adagrad": 1e-2}
ADAGRAD_SUM = 0.1
"""What Keras' Adagrad begins its sums with."""
TRAIN, TEST = int(os.environ.get("E2E_RECORDS", "1048576")), 32_768
TRAIN_SEED, TEST_SEED, TRUTH_SEED = 0, 1, 99
ID_WEIGHT, DENSE_WEIGHT, BIAS = 0.35, 0.15, -1.4
"""Standard deviations of the weights; the logit of the mean record: a quarter is positive."""
BLOCK = 512
"""Records of a block of train.bin: their dense features, then their ids, then their labels."""
Records: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]


def arrays(records: int, seed: int = TRAIN_SEED) -> Records:
    """float32[records, DENSE], int64[records, FIELDS], float32[records, 1]."""
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, IDS_PER_FIELD + 1) ** 1.05
    rank = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random((records, FIELDS))).clip(
        0, IDS_PER_FIELD - 1
    )
    shuffled = np.random.default_rng(TRUTH_SEED).permutation(IDS_PER_FIELD)
    ids = (shuffled[rank] + np.arange(FIELDS) * IDS_PER_FIELD).astype(np.int64)
    dense = rng.standard_normal((records, DENSE)).astype(np.float32)
    labels = rng.random(records) < 1 / (1 + np.exp(-planted_logit(dense, ids)))
    return dense, ids, labels.astype(np.float32)[:, None]


def planted_logit(dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[records]. No model ranks better in expectation."""
    truth = np.random.default_rng(TRUTH_SEED)
    of_ids = truth.normal(0, ID_WEIGHT, VOCABULARY)
    of_dense = truth.normal(0, DENSE_WEIGHT, DENSE)
    logit: NDArray[np.float64] = BIAS + of_ids[ids].sum(axis=1) + dense @ of_dense
    return logit


def adam_rate(step: Any) -> Any:
    """Return Keras' rate of a step, from 1: both averages are corrected for their zero start."""
    return LEARNING_RATE["adam"] * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)


def write(folder: Path, records: int = TRAIN) -> None:
    """Write train.npz and test.npz for jobs, train.bin for `batches`, and the shards of it."""
    train = arrays(records)
    for name, part in (("train", train), ("test", arrays(TEST, TEST_SEED))):
        np.savez(folder / f"{name}.npz", dense=part[0], ids=part[1], label=part[2])
    blocks = [
        b"".join(part[at : at + BLOCK].tobytes() for part in train)
        for at in range(0, records, BLOCK)
    ]
    (folder / "train.bin").write_bytes(b"".join(blocks))
    for number, shard in enumerate(shards(folder)):
        shard.mkdir()
        (shard / "train.bin").write_bytes(b"".join(blocks[number :: len(shards(folder))]))


def shards(folder: Path) -> list[Path]:
    """Folders with every second block of train.bin: a worker's part."""
    return [folder / f"shard-{number}" for number in range(2)]


def read(path: Path) -> Records:
    """What `write` wrote into an .npz file."""
    with np.load(path) as file:
        return file["dense"], file["ids"], file["label"]


def batches(folder: Path, batch: int, begin: int = 0) -> Any:
    """Return an infinite tf.data of the training records: ((dense, ids), labels).

    Each pass begins with batch number `begin`. A file of blocks, and not arrays in memory:
    processes on servers can read it, too.
    """
    import tensorflow as tf

    widths = (4 * BLOCK * DENSE, 8 * BLOCK * FIELDS, 4 * BLOCK)
    ends = np.cumsum(widths)

    def parse(blocks: Any) -> Any:
        dense, ids, labels = (
            tf.strings.substr(blocks, end - width, width)
            for end, width in zip(ends, widths, strict=True)
        )
        return (
            (
                tf.reshape(tf.io.decode_raw(dense, tf.float32), (batch, DENSE)),
                tf.reshape(tf.io.decode_raw(ids, tf.int64), (batch, FIELDS)),
            ),
            tf.reshape(tf.io.decode_raw(labels, tf.float32), (batch, 1)),
        )

    size, skipped = int(ends[-1]), begin * (batch // BLOCK)
    blocks = tf.data.FixedLengthRecordDataset(
        str(folder / "train.bin"), size, header_bytes=skipped * size
    )
    return blocks.batch(batch // BLOCK).map(parse).repeat().prefetch(2)
