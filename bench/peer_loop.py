"""Measure the limit without distribution: one process, hand-written sparse updates.

`python -m bench.peer_loop OPTIMIZER BATCH`.

Embedding gradients are merged per distinct id and applied to the touched rows only (lazy Adam
without bias correction),
dense weights by the Keras optimizer; data in memory.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import statistics
import sys
import time

import keras
import tensorflow as tf

from bench.deepfm_data import DENSE, DIM, FIELDS, HIDDEN, LEARNING_RATE, VOCABULARY, batches


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


def apply_rows(kind: str, table: Any, slots: Any, gradient: Any, ids: Any) -> None:
    rate = LEARNING_RATE[kind]
    if kind == "adagrad":
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=slots[0].handle,
            lr=rate,
            epsilon=1e-7,
            grad=gradient,
            indices=ids,
        )
        return
    first = 0.9 * tf.gather(slots[0], ids) + 0.1 * gradient
    second = 0.999 * tf.gather(slots[1], ids) + 0.001 * gradient * gradient
    slots[0].scatter_update(tf.IndexedSlices(first, ids))
    slots[1].scatter_update(tf.IndexedSlices(second, ids))
    table.scatter_sub(tf.IndexedSlices(rate * first / (tf.sqrt(second) + 1e-7), ids))


def main(kind: str, batch: int) -> None:
    tables = [
        tf.Variable(tf.random.uniform((VOCABULARY, width), -0.05, 0.05)) for width in (DIM, 1)
    ]
    slots = [
        [tf.Variable(tf.zeros_like(table)) for _ in range(2 if kind == "adam" else 1)]
        for table in tables
    ]
    mlp = keras.Sequential(
        [keras.layers.Dense(units, activation="relu") for units in HIDDEN] + [keras.layers.Dense(1)]
    )
    mlp.build((None, FIELDS * DIM + DENSE))
    linear = keras.layers.Dense(1, use_bias=False)
    linear.build((None, DENSE))
    variables = mlp.trainable_variables + linear.trainable_variables
    optimizer = {"adam": keras.optimizers.Adam, "adagrad": keras.optimizers.Adagrad}[kind](
        LEARNING_RATE[kind]
    )
    optimizer.build(variables)

    @tf.function
    def step(dense: Any, ids: Any, labels: Any) -> Any:
        distinct, positions = tf.unique(tf.reshape(ids, [-1]))
        rows = [tf.gather(table, distinct) for table in tables]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            vectors, wide = (
                tf.reshape(tf.gather(part, positions), (-1, FIELDS, part.shape[1])) for part in rows
            )
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(
                    labels, logits(dense, vectors, wide, mlp, linear)
                )
            )
        gradients = tape.gradient(loss, rows + [variable.value for variable in variables])
        for table, own, gradient in zip(tables, slots, gradients[:2], strict=True):
            merged = tf.math.unsorted_segment_sum(
                gradient.values, gradient.indices, tf.size(distinct)
            )
            apply_rows(kind, table, own, merged, distinct)
        optimizer.apply(gradients[2:], variables)
        return loss

    iterator = iter(batches(batch, max(8, min(64, 200_000 // batch))))

    def steps(number: int) -> float:
        begin = time.perf_counter()
        for _ in range(number):
            (dense, ids), labels = next(iterator)
            loss = step(dense, ids, labels)
        loss.numpy()
        return time.perf_counter() - begin

    steps(3)
    number = max(4, min(300, int(2.0 / (steps(3) / 3))))
    steps(number // 4)
    print(statistics.median(number * batch / steps(number) for _ in range(5)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
