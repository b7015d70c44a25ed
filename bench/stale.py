"""What staleness costs, and what helps: workers of `bench/zoo/cnn.py` simulated in one process.

Each worker computes on the weights of its last pull while others push. Prints validation accuracy
by seed; a run takes 12 s of a core. `STALE_METHODS`, `STALE_WORKERS` and `STALE_SEEDS` shorten it.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from bench.planted_images import draw
from bench.zoo import cnn

Floats: TypeAlias = NDArray[np.float32]
RECORDS, BATCH, EPOCHS = 8192, 64, 6
STEPS = EPOCHS * RECORDS // BATCH
JITTER = 0.2
"""Standard deviation of the logarithm of a step's duration."""


@final
class Network:
    """The CNN as a function of one flat vector: trainable weights, then averages."""

    def __init__(self, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self._model = cnn.custom_model()
        self._trainable = [variable.value for variable in self._model.trainable_variables]
        self._averages = [
            variable.value
            for variable in self._model.non_trainable_variables
            if variable.dtype == "float32"
        ]
        self._variables = [*self._trainable, *self._averages]
        self._sizes = [int(np.prod(variable.shape)) for variable in self._variables]
        self.trainable = sum(self._sizes[: len(self._trainable)])
        self.weights: Floats = _flat(self._variables).numpy()
        self._step = tf.function(self._gradients)
        self._predict = tf.function(self._outputs)

    def gradients(self, weights: Floats, images: Floats, labels: NDArray[np.int64]) -> Floats:
        """Gradients, then differences of the averages."""
        made: Floats = self._step(weights, images, labels).numpy()
        return made

    def accuracy(self, weights: Floats, images: Floats, labels: NDArray[np.int64]) -> float:
        found = self._predict(weights, images).numpy().argmax(axis=1)
        return float(np.mean(found == labels))

    def _assign(self, weights: Any) -> list[Any]:
        parts = tf.split(weights, self._sizes)
        for variable, part in zip(self._variables, parts, strict=True):
            variable.assign(tf.reshape(part, variable.shape))
        return list(parts)

    def _gradients(self, weights: Any, images: Any, labels: Any) -> Any:
        before = self._assign(weights)[len(self._trainable) :]
        with tf.GradientTape() as tape:
            loss = cnn.loss(labels, self._model(images, training=True))
        gradients = tape.gradient(loss, self._trainable)
        differences = [
            tf.reshape(now, [-1]) - then for now, then in zip(self._averages, before, strict=True)
        ]
        return _flat([*gradients, *differences])

    def _outputs(self, weights: Any, images: Any) -> Any:
        self._assign(weights)
        return self._model(images, training=False)


def _flat(tensors: list[Any]) -> Any:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


@dataclass(frozen=True, slots=True)
class Method:
    """How servers apply gradients. Each part of a minibatch counts by its share of it."""

    momentum: float = 0.9
    rate: float = 0.2
    own: bool = False
    """DANA-Zero: a velocity for each worker; pulls look ahead by their sum."""
    warm_up: int = 1
    by_gap: bool = False
    """Divide gradients by how far weights have moved since their pull, in steps (gap-aware)."""
    compensation: float = 0.0
    """DC-ASGD's lambda."""
    by_staleness: float = 0.0
    """Divide the rate by (1 + staleness) to this power."""
    shared: bool = False
    """Workers share each minibatch."""
    waits: bool = False
    """All parts of a step are computed at one version."""
    look_ahead: float = 0.0
    """Pulls look ahead by this many steps of momentum alone."""
    adam: bool = False
    minibatch: int = BATCH


METHODS: Mapping[str, Method] = {
    "momentum": Method(),
    "momentum 0.6": Method(momentum=0.6),
    "rate by staleness": Method(by_staleness=1.0),
    "DANA": Method(own=True),
    "DANA gap": Method(own=True, by_gap=True),
    "DANA compensated": Method(own=True, compensation=0.1),
    "DANA warm-up 100": Method(own=True, warm_up=100),
    "DANA warm-up 200": Method(own=True, warm_up=200),
    "DANA warm-up 100 gap": Method(own=True, warm_up=100, by_gap=True),
    "shared": Method(shared=True, look_ahead=1.0),
    "shared and waiting": Method(shared=True, waits=True),
    "batch 256 on 1": Method(minibatch=256),
    "batch 512 on 1": Method(minibatch=512, rate=0.4),
    "SGD": Method(momentum=0.0, rate=1.0),
    "Adam": Method(rate=0.003, adam=True),
}


@final
class Servers:
    """Weights and velocities. `version` counts steps."""

    def __init__(self, method: Method, network: Network, workers: int) -> None:
        self._method, self._size = method, network.trainable
        self._steps = EPOCHS * RECORDS // method.minibatch
        self.weights = network.weights.copy()
        self._velocities = np.zeros((workers if method.own else 1, self._size), np.float32)
        self._squares = np.zeros(self._size, np.float32)
        self._sum, self._examples = np.zeros_like(self.weights), 0
        self.version = 0

    def pull(self) -> Floats:
        ahead = self.weights.copy()
        looks = 1.0 if self._method.own else self._method.look_ahead
        ahead[: self._size] += looks * self._method.momentum * self._velocities.sum(axis=0)
        return ahead

    def push(self, worker: int, gradients: Floats, pulled: Floats, at: int, examples: int) -> None:
        """Add the mean of `examples` gradients that were computed on `pulled`, of version `at`."""
        self._sum += gradients * np.float32(examples)
        self._examples += examples
        if self._method.shared and self._examples < self._method.minibatch:
            return
        mean = self._sum / np.float32(self._examples)
        self._sum[:], self._examples = 0, 0
        self._apply(worker, mean[: self._size], pulled, at)
        self.weights[self._size :] += mean[self._size :]
        self.version += 1

    def _apply(self, worker: int, gradients: Floats, pulled: Floats, at: int) -> None:
        method, weights = self._method, self.weights[: self._size]
        rate = method.rate * 0.5 * (1 + math.cos(math.pi * min(self.version / self._steps, 1)))
        rate *= min(1.0, (self.version + 1) / method.warm_up)
        rate /= (1 + self.version - at) ** method.by_staleness
        if method.adam:
            return self._adam(gradients, rate)
        velocity = self._velocities[worker if method.own else 0]
        moved = self.pull()[: self._size] - pulled[: self._size]
        if method.compensation:
            gradients = gradients + method.compensation * gradients * gradients * moved
        if method.by_gap:
            step = max(float(np.linalg.norm(velocity)), 1e-9)
            gradients = gradients / max(1.0, float(np.linalg.norm(moved)) / step)
        velocity *= method.momentum
        velocity -= np.float32(rate) * gradients
        weights += velocity
        return None

    def _adam(self, gradients: Floats, rate: float) -> None:
        mean, step = self._velocities[0], self.version + 1
        mean += (gradients - mean) * (1 - self._method.momentum)
        self._squares += (gradients * gradients - self._squares) * 0.001
        alpha = rate * math.sqrt(1 - 0.999**step) / (1 - self._method.momentum**step)
        self.weights[: self._size] -= alpha * mean / (np.sqrt(self._squares) + 1e-7)


def train(method: Method, workers: int, seed: int) -> float:
    """Validation accuracy after all epochs."""
    network, random = Network(seed), np.random.default_rng([seed, workers])
    images, labels = draw(RECORDS, seed=1)
    servers = Servers(method, network, workers)
    size = method.minibatch // workers if method.shared else method.minibatch
    left = iter(
        np.concatenate([random.permutation(RECORDS) for _ in range(EPOCHS)]).reshape(-1, size)
    )
    pulled: list[tuple[Floats, int]] = [(servers.pull(), 0)] * workers
    ends: list[tuple[float, int, Any]] = []

    def begin(worker: int, now: float) -> None:
        records = next(left, None)
        if records is not None:
            # Where all wait for a step, they pull together before its first part.
            pulled[worker] = (servers.pull(), servers.version)
            heapq.heappush(ends, (now + math.exp(random.normal(0, JITTER)), worker, records))

    def all_begin(now: float) -> None:
        for worker in range(workers):
            begin(worker, now if method.waits else now + worker / workers)

    all_begin(0.0)
    while ends:
        now, worker, records = heapq.heappop(ends)
        weights, at = pulled[worker]
        gradients = network.gradients(weights, images[records], labels[records])
        servers.push(worker, gradients, weights, at, len(records))
        if not method.waits:
            begin(worker, now)
        elif not ends:
            all_begin(now)
    return network.accuracy(servers.weights, *draw(2048, seed=2))


def measure() -> dict[str, dict[str, list[float]]]:
    """Accuracy by method and number of workers."""
    names = os.environ.get("STALE_METHODS", ",".join(METHODS)).split(",")
    seeds = [int(seed) for seed in os.environ.get("STALE_SEEDS", "1 2").split()]
    counts = [int(count) for count in os.environ.get("STALE_WORKERS", "1 2 4 8").split()]
    figures: dict[str, dict[str, list[float]]] = {}
    tf.config.threading.set_intra_op_parallelism_threads(1)
    for name in names:
        for count in [1] if name.endswith("on 1") else counts:
            found = [round(train(METHODS[name], count, seed), 3) for seed in seeds]
            figures.setdefault(name, {})[str(count)] = found
            print(f"{name:22} {count} workers  {' '.join(map(str, found))}", flush=True)
    return figures
