"""Iris from a SQLite table with a custom reader, and a custom processor of predictions.

`--training-data iris.sqlite --data-reader-params "table=train"`. Predictions go to
`$PREDICTIONS_DIR/worker-N.csv`
(`--envs PREDICTIONS_DIR=...`).
"""

import csv
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import keras
import tensorflow as tf
from iris import NAMES, custom_model, loss, optimizer  # noqa: F401 - the network is that of iris.py


class SQLiteReader:
    """Rows of a table by their rowid, as tuples.

    An example of a custom reader.
    """

    def __init__(self, path, table):
        self.path = path
        self.table = '"' + table.replace('"', '""') + '"'

    def create_shards(self):
        """One range for the whole table: rowids are 1, 2, 3, and so on."""
        with closing(self._connect()) as connection:
            (count,) = connection.execute(f"SELECT COUNT(*) FROM {self.table}").fetchone()
        return {self.table: (1, count)}

    def read_records(self, task):
        """Rows [task.start, task.end)."""
        columns = ", ".join([*NAMES, "species"])
        query = f"SELECT {columns} FROM {self.table} WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
        with closing(self._connect()) as connection:
            yield from connection.execute(query, (task.start, task.end))

    def _connect(self):
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)


def custom_data_reader(data_origin, records_per_task=None, table="train"):
    """Reader of `table` in the database file `data_origin`."""
    return SQLiteReader(data_origin, table)


def feed(dataset, mode, metadata):
    """Rows of float64[5] -> (float32[4], int32 species)."""

    def parse(row):
        features = tf.cast(row[:4], tf.float32)
        return features if mode == "prediction" else (features, tf.cast(row[4], tf.int32))

    return dataset.map(parse)


def eval_metrics_fn():
    """A metric may be a plain function that returns a value per example."""

    def right(labels, predictions):
        return tf.cast(tf.equal(tf.argmax(predictions, 1, tf.int32), labels), tf.float32)

    return {"accuracy": right}


class PredictionOutputsProcessor:
    """Writes species and its probability, a row for each example, to one file per worker."""

    def process(self, predictions, worker_id):
        """`predictions` are logits [n, 3]."""
        folder = Path(os.environ.get("PREDICTIONS_DIR", "predictions"))
        folder.mkdir(parents=True, exist_ok=True)
        probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(predictions))
        with open(folder / f"worker-{worker_id}.csv", "a", newline="") as file:
            csv.writer(file).writerows(
                (int(row.argmax()), f"{row.max():.6f}") for row in probabilities
            )
