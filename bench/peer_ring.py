"""ResNet20 of `bench/zoo` in a plain loop: alone, or under `horovodrun` on plain Horovod.

`python -m bench.peer_ring THREADS BATCH SECONDS plain|horovod`: samples/s of all processes
together, and CPU time of this one in
ms a sample. One batch, in memory for ever: nothing is read.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from bench.zoo import resnet20


def main(threads: int, batch: int, seconds: float, kind: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    size, rank, reduced = 1, 0, list
    if kind == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        size, rank, reduced = hvd.size(), hvd.rank(), hvd.grouped_allreduce
    model, optimizer = resnet20.custom_model(), resnet20.optimizer()
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(rank)
    image = tf.constant(rng.normal(size=(batch, 32, 32, 3)).astype(np.float32))
    label = tf.constant(rng.integers(0, 10, batch))

    @tf.function(autograph=False)
    def step(image: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            value = resnet20.loss(label, model(image, training=True))
        optimizer.apply(
            reduced(tape.gradient(value, [one.value for one in model.trainable_variables]))
        )
        return value

    for _ in range(3):
        step(image, label).numpy()
    # All processes do the same number of steps.
    begin = time.perf_counter()
    for _ in range(3):
        step(image, label).numpy()
    count = max(5, int(seconds * 3 / (time.perf_counter() - begin)))
    if kind == "horovod":
        count = int(hvd.broadcast(tf.constant(count), 0).numpy())
    begin, cpu = time.perf_counter(), _cpu_s()
    for _ in range(count):
        step(image, label).numpy()
    wall_s, cpu_s = time.perf_counter() - begin, _cpu_s() - cpu
    if rank == 0:
        print("figures", count * batch * size / wall_s, cpu_s / (count * batch) * 1e3, flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
