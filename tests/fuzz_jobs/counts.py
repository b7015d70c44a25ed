"""What the weights of `zoo/counting.py` say was trained: read from an export and from
checkpoints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoint import directories, ring_file
from elasticdl.checkpoint.layout import MANIFEST
from elasticdl.checkpoint.part import WEIGHTS, read_header
from elasticdl.model.tensorflow_import import load_tensorflow

BUCKETS = 7
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """How often each record, the records of each bucket, and all of them were trained on."""

    records: Floats
    buckets: Floats
    total: float

    def since(self, before: Counts | None) -> Counts:
        """What was trained after that."""
        if before is None:
            return self
        return Counts(
            self.records - before.records, self.buckets - before.buckets, self.total - before.total
        )

    def problem(self, repeated: int = 0) -> str:
        """Where the three do not agree with one another, '' if they do.

        A batch that some servers had when its worker was killed is repeated; those have it twice.
        """
        of_records = np.bincount(np.arange(len(self.records)) % BUCKETS, self.records, BUCKETS)
        if np.abs(self.buckets - of_records).sum() > repeated:
            return f"buckets say {self.buckets.tolist()}, records {of_records.tolist()}"
        if abs(self.total - self.records.sum()) > repeated:
            return f"the total says {self.total}, records {self.records.sum()}"
        return ""


def of_export(folder: Path, rows: int, width: int) -> Counts:
    """By the signature of the SavedModel, as whoever serves the model sees it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    load_tensorflow()
    import tensorflow as tf

    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    [name] = serve.structured_input_signature[1]
    [outputs] = serve(**{name: tf.range(rows, dtype=tf.int64)}).values()
    seen = np.asarray(outputs.numpy(), np.float64)
    buckets = np.zeros(BUCKETS)
    buckets[: min(BUCKETS, rows)] = seen[:BUCKETS, 1]
    return Counts(seen[:, 0] / width, buckets, float(seen[0, 2]))


def of_weights_file(folder: Path, width: int) -> Counts:
    """By the weights file of a model whose vocabulary is bounded."""
    import h5py

    found: dict[str, Floats] = {}
    with h5py.File(folder / "model.weights.h5") as file:

        def visit(name: str, one: Any) -> None:
            if isinstance(one, h5py.Dataset):
                found[name] = np.asarray(one, np.float64)

        file.visititems(visit)
    return _of_named(found, width)


def of_checkpoint(directory: Path, rows: int, width: int) -> Counts:
    """By its files, whichever strategy made it. Raises Corrupted if they are not whole."""
    if directories.verify(directory).servers == 0:
        _, arrays = ring_file.read(directory)
        return _of_named({name: np.asarray(one, np.float64) for name, one in arrays.items()}, width)
    return _of_servers(directory, rows, width)


def trained_of_ledger(directory: Path) -> int:
    """Records that are trained, as the ledger in a checkpoint has them."""
    found = json.loads(directories.read_manifest(directory).ledger)["counts"]
    return sum(int(one["trained"]) for one in found)


def checkpoints(job: Path) -> list[Path]:
    """Complete ones, oldest first."""
    found = (job / "checkpoints").glob(f"version-*/{MANIFEST}")
    return sorted(
        (path.parent for path in found), key=lambda path: int(path.name.removeprefix("version-"))
    )


def _of_named(values: Mapping[str, Floats], width: int) -> Counts:
    """From arrays by the path of their variable."""
    records, buckets, total = (
        [one for name, one in values.items() if f"{part}/" in name]
        for part in ("records", "buckets", "total")
    )
    return Counts(records[0].sum(axis=1) / width, buckets[0][:, 0], float(total[0]))


def _of_servers(directory: Path, rows: int, width: int) -> Counts:
    """All parts as one server would take them. A delta has newer rows than the links before it."""
    paths = [directory / file.name for file in directories.read_manifest(directory).all_files]
    parts = [(path, read_header(path)) for path in paths]
    spec = parts[0][1].header.parameters
    flat = np.zeros(spec.trainable_size, np.float32)
    tables = [np.zeros((max(rows, BUCKETS), table.dim), np.float32) for table in spec.tables]
    for path, part in parts:
        data = path.read_bytes()
        for read in part.dense_reads(0, 1):
            if read.section == WEIGHTS:
                flat[read.at : read.at + read.count] = np.frombuffer(
                    data, np.float32, read.count, read.offset
                )
        for found in part.table_reads(0, 1):
            ids = np.frombuffer(data, np.int64, found.rows, found.offset)
            table = tables[found.table]
            values = np.frombuffer(
                data, np.float32, found.rows * table.shape[1], found.offset + ids.nbytes
            )
            table[ids] = values.reshape(-1, table.shape[1])
    named, begin = {}, 0
    for one in spec.dense:
        named[f"{one.path}/"] = flat[begin : begin + one.size].reshape(one.shape).astype(np.float64)
        begin += one.size
    for layer, values in zip(spec.tables, tables, strict=True):
        named[f"{layer.name}/"] = values[
            : BUCKETS if layer.name.endswith("buckets") else rows
        ].astype(np.float64)
    return _of_named(named, width)
