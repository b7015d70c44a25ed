"""tf.distribute.ParameterServerStrategy at its best: a custom loop of raw ops on the server
instead of Keras `fit`. Its updates follow Keras' rules on the rows of a batch.

`python -m bench.peer_pss OPTIMIZER BATCH FOLDER` starts one server and two workers as processes.
"""

from __future__ import annotations

import os
from typing import Any, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path

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
    shards,
)
from bench.learning_curve import report


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(cluster: dict[str, list[str]], job: str, index: int) -> None:
    tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc"
    ).join()


def mlp_weights() -> list[np.ndarray]:
    """Kernels and biases of the MLP, then the kernel of the linear part, as Keras begins them."""
    rng = np.random.default_rng()
    widths = [FIELDS * DIM + DENSE, *HIDDEN, 1]
    weights = []
    for fan_in, fan_out in itertools.pairwise(widths):
        weights += [glorot_uniform(rng, fan_in, fan_out), np.zeros(fan_out, np.float32)]
    return [*weights, glorot_uniform(rng, DENSE, 1)]


def glorot_uniform(rng: np.random.Generator, fan_in: int, fan_out: int) -> NDArray[np.float32]:
    """float32[fan_in, fan_out]; what `keras.layers.Dense` begins its kernel with."""
    limit = np.sqrt(6 / (fan_in + fan_out))
    return rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)


def apply_rows(kind: str, table: Any, slots: Any, gradient: Any, ids: Any, step: Any) -> None:
    raw = tf.raw_ops
    if kind == "adagrad":
        raw.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=slots[0].handle,
            lr=LEARNING_RATE[kind],
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
        moved = adam_rate(step) * first / (tf.sqrt(second) + 1e-7)
        raw.ResourceScatterSub(resource=table.handle, indices=ids, updates=moved)


def apply_dense(kind: str, weight: Any, slots: Any, gradient: Any, step: Any) -> None:
    raw, rate = tf.raw_ops, LEARNING_RATE[kind]
    if kind == "adagrad":
        raw.ResourceApplyAdagradV2(
            var=weight.handle, accum=slots[0].handle, lr=rate, epsilon=1e-7, grad=gradient
        )
    else:
        raw.ResourceApplyAdam(
            var=weight.handle, m=slots[0].handle, v=slots[1].handle, beta1_power=0.9**step,
            beta2_power=0.999**step, lr=rate, beta1=0.9, beta2=0.999, epsilon=1e-7, grad=gradient,
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


@final
class ParameterServers:
    """Workers read `train.bin` of their own working directory."""

    def __init__(self, kind: str, batch: int, cluster: dict[str, list[str]]) -> None:
        self._kind = kind
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self._tables = [
                tf.Variable(tf.random.uniform((VOCABULARY, width), -0.05, 0.05))
                for width in (DIM, 1)
            ]
            self._weights = [tf.Variable(value) for value in mlp_weights()]
            self._table_slots = [self._slots_of(table) for table in self._tables]
            self._weight_slots = [self._slots_of(weight) for weight in self._weights]
        self._iterator = iter(
            self._coordinator.create_per_worker_dataset(lambda: batches(Path(), batch))
        )
        self._train_one, self._predict = tf.function(self._train), tf.function(self._outputs)
        self._steps = 0

    def _slots_of(self, variable: Any) -> list[Any]:
        with self._strategy.extended.colocate_vars_with(variable):
            if self._kind == "adagrad":
                return [tf.Variable(tf.fill(variable.shape, ADAGRAD_SUM))]
            return [tf.Variable(tf.zeros(variable.shape)) for _ in range(2)]

    def _train(self, iterator: Any, step: Any) -> Any:
        (dense, ids), labels = next(iterator)
        distinct, positions = tf.unique(tf.reshape(ids, [-1]))
        rows = [tf.gather(table, distinct) for table in self._tables]
        local = [tf.identity(weight) for weight in self._weights]
        with tf.GradientTape() as tape:
            tape.watch(rows + local)
            vectors, wide = (
                tf.reshape(tf.gather(part, positions), (-1, FIELDS, part.shape[1])) for part in rows
            )
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels, logits(dense, vectors, wide, local))
            )
        gradients = tape.gradient(loss, rows + local)
        for table, own, gradient in zip(
            self._tables, self._table_slots, gradients[:2], strict=True
        ):
            merged = tf.math.unsorted_segment_sum(
                gradient.values, gradient.indices, tf.size(distinct)
            )
            apply_rows(self._kind, table, own, merged, distinct, step)
        for weight, own, gradient in zip(
            self._weights, self._weight_slots, gradients[2:], strict=True
        ):
            apply_dense(self._kind, weight, own, gradient, step)
        return loss

    def _outputs(self, dense: Any, ids: Any) -> Any:
        vectors, wide = (tf.gather(table, ids) for table in self._tables)
        return logits(dense, vectors, wide, [tf.identity(weight) for weight in self._weights])

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._steps += 1
            step = tf.constant(self._steps, tf.float32)
            self._coordinator.schedule(self._train_one, args=(self._iterator, step))
        self._coordinator.join()

    def logits(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        predicted: NDArray[np.float32] = self._predict(dense, ids).numpy()
        return predicted


def main(kind: str, batch: int, folder: Path) -> None:
    names = {"ps": 1, "worker": len(shards(folder)), "chief": 1}
    cluster = {
        job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in names.items()
    }
    children = []
    for job, folders in {"ps": [folder], "worker": shards(folder)}.items():
        for index, place in enumerate(folders):
            command = [sys.executable, "-m", "bench.peer_pss", "serve", json.dumps(cluster)]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
            children.append(
                subprocess.Popen(
                    [*command, job, str(index)],
                    cwd=place,
                    env=environment,
                    stderr=subprocess.DEVNULL,
                )
            )
    try:
        report(ParameterServers(kind, batch, cluster), batch, folder)
        sys.stdout.flush()
    finally:
        for child in children:
            child.kill()
            child.wait()
    os._exit(0)  # the coordinator's threads never end


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
