"""Measure the limit without distribution: one process, hand-written sparse updates.

`python -m bench.peer_loop OPTIMIZER BATCH FOLDER`.

Embedding gradients are merged per distinct id and applied to the touched rows only, by Keras'
rules; dense weights by the Keras optimizer.
"""

from __future__ import annotations

import os
from typing import Any, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from bench.deepfm_data import (
    ADAGRAD_SUM,
    DENSE,
    DIM,
    FIELDS,
    HIDDEN,
    LEARNING_RATE,
    VOCABULARY,
    adam_rate,
    batches,
)
from bench.learning_curve import report


def logits(dense: Any, vectors: Any, wide: Any, mlp: Any, linear: Any) -> Any:
    """DeepFM's head on looked-up rows: float32[batch, 1]."""
    total = tf.reduce_sum(vectors, 1)
    pairs = 0.5 * tf.reduce_sum(
        total * total - tf.reduce_sum(vectors * vectors, 1), 1, keepdims=True
    )
    return (
        mlp(tf.concat([tf.reshape(vectors, (-1, FIELDS * DIM)), dense], 1))
        + pairs
        + tf.reduce_sum(wide, 1)
        + linear(dense)
    )


def slots_of(kind: str, table: Any) -> list[Any]:
    if kind == "adagrad":
        return [tf.Variable(tf.fill(table.shape, ADAGRAD_SUM))]
    return [tf.Variable(tf.zeros_like(table)) for _ in range(2)]


def apply_rows(kind: str, table: Any, slots: Any, gradient: Any, ids: Any, step: Any) -> None:
    if kind == "adagrad":
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=slots[0].handle,
            lr=LEARNING_RATE[kind],
            epsilon=1e-7,
            grad=gradient,
            indices=ids,
        )
        return
    first = 0.9 * tf.gather(slots[0], ids) + 0.1 * gradient
    second = 0.999 * tf.gather(slots[1], ids) + 0.001 * gradient * gradient
    slots[0].scatter_update(tf.IndexedSlices(first, ids))
    slots[1].scatter_update(tf.IndexedSlices(second, ids))
    moved = adam_rate(step) * first / (tf.sqrt(second) + 1e-7)
    table.scatter_sub(tf.IndexedSlices(moved, ids))


@final
class Loop:
    def __init__(self, kind: str, batch: int, folder: Path) -> None:
        self._kind, self._batches = kind, iter(batches(folder, batch))
        self._tables = [
            tf.Variable(tf.random.uniform((VOCABULARY, width), -0.05, 0.05)) for width in (DIM, 1)
        ]
        self._slots = [slots_of(kind, table) for table in self._tables]
        self._mlp = keras.Sequential(
            [keras.layers.Dense(units, activation="relu") for units in HIDDEN]
            + [keras.layers.Dense(1)]
        )
        self._mlp.build((None, FIELDS * DIM + DENSE))
        self._linear = keras.layers.Dense(1, use_bias=False)
        self._linear.build((None, DENSE))
        self._variables = self._mlp.trainable_variables + self._linear.trainable_variables
        self._optimizer = {"adam": keras.optimizers.Adam, "adagrad": keras.optimizers.Adagrad}[
            kind
        ](LEARNING_RATE[kind])
        self._optimizer.build(self._variables)
        self._step, self._predict = tf.function(self._train), tf.function(self._outputs)

    def _train(self, dense: Any, ids: Any, labels: Any) -> Any:
        distinct, positions = tf.unique(tf.reshape(ids, [-1]))
        rows = [tf.gather(table, distinct) for table in self._tables]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            vectors, wide = (
                tf.reshape(tf.gather(part, positions), (-1, FIELDS, part.shape[1])) for part in rows
            )
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(
                    labels, logits(dense, vectors, wide, self._mlp, self._linear)
                )
            )
        gradients = tape.gradient(loss, rows + [variable.value for variable in self._variables])
        step = tf.cast(self._optimizer.iterations + 1, tf.float32)
        for table, own, gradient in zip(self._tables, self._slots, gradients[:2], strict=True):
            merged = tf.math.unsorted_segment_sum(
                gradient.values, gradient.indices, tf.size(distinct)
            )
            apply_rows(self._kind, table, own, merged, distinct, step)
        self._optimizer.apply(gradients[2:], self._variables)
        return loss

    def _outputs(self, dense: Any, ids: Any) -> Any:
        vectors, wide = (tf.gather(table, ids) for table in self._tables)
        return logits(dense, vectors, wide, self._mlp, self._linear)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            (dense, ids), labels = next(self._batches)
            loss = self._step(dense, ids, labels)
        loss.numpy()

    def logits(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        predicted: NDArray[np.float32] = self._predict(dense, ids).numpy()
        return predicted


if __name__ == "__main__":
    batch = int(sys.argv[2])
    report(Loop(sys.argv[1], batch, Path(sys.argv[3])), batch, Path(sys.argv[3]))
