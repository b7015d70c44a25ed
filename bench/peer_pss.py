"""tf.distribute.ParameterServerStrategy at its best: a custom loop of raw ops on the server
instead of Keras `fit`.

`python -m bench.peer_pss OPTIMIZER BATCH [WORKERS]` starts one server and the workers as processes,
prints samples/s.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import json
import socket
import statistics
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

from bench.deepfm_data import DENSE, DIM, FIELDS, HIDDEN, LEARNING_RATE, VOCABULARY, batches


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(cluster: dict[str, list[str]], job: str, index: int) -> None:
    tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc"
    ).join()


def mlp_weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    widths = [FIELDS * DIM + DENSE, *HIDDEN, 1]
    weights = []
    for fan_in, fan_out in itertools.pairwise(widths):
        weights += [
            (rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(np.float32),
            np.zeros(fan_out, np.float32),
        ]
    return [*weights, (rng.standard_normal((DENSE, 1)) * 0.01).astype(np.float32)]


def apply_rows(kind: str, table: Any, slots: Any, gradient: Any, ids: Any) -> None:
    raw, rate = tf.raw_ops, LEARNING_RATE[kind]
    if kind == "adagrad":
        raw.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=slots[0].handle,
            lr=rate,
            epsilon=1e-7,
            grad=gradient,
            indices=ids,
        )
        return
    with tf.device(table.device):  # lazy Adam, computed on the server
        gradient, ids = tf.identity(gradient), tf.identity(ids)
        first = 0.9 * tf.gather(slots[0], ids) + 0.1 * gradient
        second = 0.999 * tf.gather(slots[1], ids) + 0.001 * gradient * gradient
        raw.ResourceScatterUpdate(resource=slots[0].handle, indices=ids, updates=first)
        raw.ResourceScatterUpdate(resource=slots[1].handle, indices=ids, updates=second)
        raw.ResourceScatterSub(
            resource=table.handle, indices=ids, updates=rate * first / (tf.sqrt(second) + 1e-7)
        )


def apply_dense(kind: str, weight: Any, slots: Any, gradient: Any) -> None:
    raw, rate = tf.raw_ops, LEARNING_RATE[kind]
    if kind == "adagrad":
        raw.ResourceApplyAdagradV2(
            var=weight.handle, accum=slots[0].handle, lr=rate, epsilon=1e-7, grad=gradient
        )
    else:
        raw.ResourceApplyAdam(
            var=weight.handle, m=slots[0].handle, v=slots[1].handle, beta1_power=0.0,
            beta2_power=0.0, lr=rate, beta1=0.9, beta2=0.999, epsilon=1e-7, grad=gradient,
        )  # fmt: skip


def logits(dense: Any, vectors: Any, wide: Any, weights: Any) -> Any:
    hidden = tf.concat([tf.reshape(vectors, (-1, FIELDS * DIM)), dense], 1)
    for layer in range(0, len(weights) - 1, 2):
        hidden = tf.matmul(hidden, weights[layer]) + weights[layer + 1]
        hidden = tf.nn.relu(hidden) if layer < len(weights) - 3 else hidden
    total = tf.reduce_sum(vectors, 1)
    pairs = 0.5 * tf.reduce_sum(
        total * total - tf.reduce_sum(vectors * vectors, 1), 1, keepdims=True
    )
    return hidden + pairs + tf.reduce_sum(wide, 1) + tf.matmul(dense, weights[-1])


def measure(kind: str, batch: int, cluster: dict[str, list[str]]) -> float:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        tables = [
            tf.Variable(tf.random.uniform((VOCABULARY, width), -0.05, 0.05)) for width in (DIM, 1)
        ]
        weights = [tf.Variable(value) for value in mlp_weights()]

        def slots_of(variable: Any) -> list[Any]:
            with strategy.extended.colocate_vars_with(variable):
                return [
                    tf.Variable(tf.zeros(variable.shape)) for _ in range(2 if kind == "adam" else 1)
                ]

        table_slots, weight_slots = [slots_of(v) for v in tables], [slots_of(v) for v in weights]

    @tf.function
    def step(iterator: Any) -> Any:
        (dense, ids), labels = next(iterator)
        distinct, positions = tf.unique(tf.reshape(ids, [-1]))
        rows = [tf.gather(table, distinct) for table in tables]
        local = [tf.identity(weight) for weight in weights]
        with tf.GradientTape() as tape:
            tape.watch(rows + local)
            vectors, wide = (
                tf.reshape(tf.gather(part, positions), (-1, FIELDS, part.shape[1])) for part in rows
            )
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels, logits(dense, vectors, wide, local))
            )
        gradients = tape.gradient(loss, rows + local)
        for table, own, gradient in zip(tables, table_slots, gradients[:2], strict=True):
            merged = tf.math.unsorted_segment_sum(
                gradient.values, gradient.indices, tf.size(distinct)
            )
            apply_rows(kind, table, own, merged, distinct)
        for weight, own, gradient in zip(weights, weight_slots, gradients[2:], strict=True):
            apply_dense(kind, weight, own, gradient)
        return loss

    iterator = iter(
        coordinator.create_per_worker_dataset(
            lambda: batches(batch, max(8, min(64, 100_000 // batch)))
        )
    )

    def steps(number: int) -> float:
        begin = time.perf_counter()
        for _ in range(number):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        return time.perf_counter() - begin

    steps(6)
    number = max(10, min(400, int(2.5 / (steps(20) / 20))))
    return statistics.median(number * batch / steps(number) for _ in range(5))


def main(kind: str, batch: int, workers: int) -> None:
    names = {"ps": 1, "worker": workers, "chief": 1}
    cluster = {
        job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in names.items()
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.peer_pss", "serve", json.dumps(cluster), job, str(index)],
            stderr=subprocess.DEVNULL,
        )
        for job in ("ps", "worker")
        for index in range(names[job])
    ]
    try:
        print(measure(kind, batch, cluster), flush=True)
    finally:
        for child in children:
            child.kill()
            child.wait()
    os._exit(0)  # the coordinator's threads never end


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 2)
