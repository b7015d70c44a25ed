"""A worker for Horovod's own elastic driver on the MLP of `bench/zoo`: commits every 10 steps,
writes a line a step.

It defines its own state class: of Horovod's classes, one hangs at a join and one does not start
under Keras 3.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.elastic import ObjectState
from horovod.tensorflow.elastic import run
from horovod.tensorflow.functions import broadcast_object, broadcast_variables

from bench.zoo import mlp

BATCH, COMMIT_EVERY = 64, 10


class State(ObjectState):  # type: ignore[misc]
    """Weights and slots, broadcast when the ring forms."""

    def __init__(self, variables: list[Any], **objects: Any) -> None:
        self._variables = variables
        self._saved = [one.numpy() for one in variables]
        super().__init__(bcast_object=broadcast_object, get_rank=hvd.rank, **objects)

    def save(self) -> None:
        self._saved = [one.numpy() for one in self._variables]
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables, self._saved, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._variables, root_rank=0)
        self._saved = [one.numpy() for one in self._variables]
        super().sync()


def main() -> None:
    begun_s = time.time()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    model, optimizer = mlp.custom_model(), mlp.optimizer()
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(BATCH, 784)).astype(np.float32))
    y = tf.constant(rng.integers(0, 10, BATCH))
    log = os.open(os.environ["PEER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(what: str, number: float) -> None:
        os.write(
            log,
            f"{time.time():.6f} {what} {os.getpid()} {hvd.rank()} {hvd.size()} {number}\n".encode(),
        )

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = mlp.loss(y, model(x, training=True))
        # One by one: the elastic loop does not recognise errors of grouped operations, so they
        # would end the job.
        gradients = tape.gradient(value, [one.value for one in model.trainable_variables])
        optimizer.apply([hvd.allreduce(one) for one in gradients])
        return value

    state = State([one.value for one in (*model.trainable_variables, *optimizer.variables)], step=0)
    tell("START", begun_s)

    @run
    def train(state: Any) -> None:
        while True:
            step().numpy()
            state.step += 1
            tell("STEP", state.step)
            if state.step % COMMIT_EVERY == 0:
                state.commit()

    train(state)


if __name__ == "__main__":
    main()
