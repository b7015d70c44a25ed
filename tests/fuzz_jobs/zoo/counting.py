"""A model whose weights count the records that it was trained on: each record by its id, each
bucket of ids, and all.

On parameter servers SGD with a learning rate of 1 adds to each weight the number of its records in
the minibatch. On a ring gradients are means over the minibatch: see `ring_counting`. In both, whole
numbers stay exact in float32. A job's own module takes what it needs of this one.
"""

import faulthandler
import os
import signal
import sys
import time

import keras
import tensorflow as tf

from elasticdl.model.callbacks import LearningRateScheduler, MaxStepsStopping, SavedModelExporter
from elasticdl.model.layers import Embedding

BUCKETS = 7

# A job that stands still is asked what each of its threads is at.
faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


class Total(keras.layers.Layer):
    """One weight, given for each example of a batch."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def call(self, ids):
        return tf.fill(tf.shape(ids), tf.convert_to_tensor(self.count))


class Counts(keras.layers.Layer):
    """int64[n] ids -> [n, 3] of Keras's default type: `width` times how often each id was trained
    on, its bucket, and all ids.
    """

    def __init__(self, rows, kind, width, dtype):
        super().__init__(name="counts")
        self.records = _records(kind, rows, width, dtype)
        self.buckets = keras.layers.Embedding(
            BUCKETS, 1, embeddings_initializer="zeros", name="buckets"
        )
        self.total = Total(name="total")

    def call(self, ids):
        record = tf.cast(tf.reduce_sum(self.records(ids), axis=-1), self.compute_dtype)
        return tf.stack([record, self.buckets(ids % BUCKETS)[:, 0], self.total(ids)], axis=1)


def _records(kind, rows, width, dtype):
    zeros = {"embeddings_initializer": keras.initializers.Zeros(), "name": "records"}
    match kind:
        case "unbounded":
            return Embedding(width, **zeros)
        case "served":
            return Embedding(width, input_dim=rows, served=True, **zeros)
        case "dense":
            return Embedding(width, input_dim=rows, served=False, dtype=dtype, **zeros)
        case "keras":
            return keras.layers.Embedding(rows, width, dtype=dtype, **zeros)
    raise ValueError(kind)


def custom_model(rows, kind="keras", width=1, dtype="float32"):
    ids = keras.Input((), dtype="int64", name="id")
    return keras.Model(ids, Counts(rows, kind, width, dtype)(ids))


class Subclassed(keras.Model):
    """The same, without inputs before it is called."""

    def __init__(self, rows, kind="keras", width=1, dtype="float32"):
        super().__init__()
        self.counts = Counts(rows, kind, width, dtype)

    def call(self, ids):
        return self.counts(ids)


def loss(labels, predictions):
    """Minus the sum of all outputs: a weight's gradient is minus the number of its records."""
    return -tf.reduce_sum(predictions)


def optimizer():
    return keras.optimizers.SGD(1.0)


def feed_batch(records, mode, metadata):
    """CSV rows, TFRecords that are the id in digits, or columns -> (ids, ids)."""
    ids = _ids(records, metadata, axis=1)
    return ids, ids


def feed(dataset, mode, metadata):
    def pair(record):
        ids = _ids(record, metadata, axis=0)
        return ids, ids

    return dataset.map(pair)


def _ids(records, metadata, axis):
    if isinstance(records, dict):
        return tf.cast(records["id"], tf.int64)
    if records.shape.rank > axis:
        records = tf.gather(records, list(metadata.column_names).index("id"), axis=axis)
    return tf.strings.to_number(records, tf.int64)


class Seen(keras.metrics.Metric):
    """How many records were evaluated."""

    def __init__(self, name="seen"):
        super().__init__(name=name)
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, labels, predictions, sample_weight=None):
        self.count.assign_add(self._counted(labels, predictions))

    def _counted(self, labels, predictions):
        return tf.cast(tf.size(labels), tf.float32)

    def result(self):
        return self.count


class TotalSeen(Seen):
    """How many records the evaluated weights were trained on, as the one record of id 0 sees it."""

    def _counted(self, labels, predictions):
        return tf.reduce_sum(tf.where(labels == 0, predictions[:, 2], 0.0))


def eval_metrics_fn():
    return {"seen": Seen(), "total": TotalSeen(name="total")}


def callbacks():
    """Those that the environment of the job names."""
    wanted = os.environ.get("COUNTING_CALLBACKS", "").split(",")
    made = {
        "rate": lambda: LearningRateScheduler(lambda version: 1.0),
        "log": lambda: keras.callbacks.CSVLogger("counts.csv"),
        "exporter": SavedModelExporter,
        "stop": lambda: MaxStepsStopping(int(os.environ["COUNTING_STEPS"])),
    }
    pause_s = float(os.environ.get("COUNTING_PAUSE_S", "0"))
    paused = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: time.sleep(pause_s))]
    return [made[name]() for name in wanted if name] + (paused if pause_s else [])


class LinesReader:
    """A reader of ElasticDL's kind over the files of a folder, an id a line."""

    def __init__(self, folder):
        self._lines = {
            name: _lines(os.path.join(folder, name)) for name in sorted(os.listdir(folder))
        }

    def create_shards(self):
        return {name: (0, len(lines)) for name, lines in self._lines.items()}

    def read_records(self, task):
        yield from self._lines[task.shard_name][task.start : task.end]


def _lines(path):
    with open(path) as file:
        return file.read().split()
