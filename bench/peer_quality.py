"""Plain Keras: a module's own functions in a loop without anything of ElasticDL but its readers.

`python -m bench.peer_quality CASE` with a case as JSON prints as JSON how the metric on the test
data went: [share of all steps, seconds, metric] at each of the steps that the case names.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data import Records, open_reader
from elasticdl.job_flags import ModelSection
from elasticdl.model.building import optimizer_params
from elasticdl.model.input import Feeder
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.usercode import taken
from elasticdl.shard import Shard, ShardId, Task


def feeding(
    module: ModelModule, task: Task, origin: str, params: Mapping[str, Any]
) -> Callable[[], tuple[Any, Any]]:
    """Read all records, and return what feeds them: (features, labels) as NumPy arrays.

    Each call feeds them anew, since a module may draw negatives or turn images at random.
    """
    reader = open_reader(origin, params)
    parts: list[Any] = [
        block.records
        for source in reader.sources()
        for block in reader.read(Shard(ShardId(1), source.name, 0, source.records))
    ]
    records: Records = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if isinstance(parts[0], Mapping)
        else np.concatenate(parts)
    )
    feeder = Feeder(module, task, reader.metadata)

    def feed() -> tuple[Any, Any]:
        made = feeder(records)
        assert made is not None
        features, labels = tf.nest.map_structure(np.asarray, made)
        return features, labels

    return feed


def train(module: ModelModule, case: Mapping[str, Any]) -> Iterator[tuple[int, keras.Model]]:
    """Yield steps so far and the model after every `case["look_steps"]` steps, and at the end.

    Keras' Adam and Adagrad add the squares of the gradients of an id that comes several times in a
    batch. With `case["sums"]` they square their sum, as for any dense gradient.
    """
    keras.utils.set_random_seed(case["seed"])
    model = module.custom_model(**taken(module.custom_model, case["params"]))
    optimizer = module.optimizer(**optimizer_params(module, case["params"]))
    schedules = [
        callback.schedule
        for callback in (module.callbacks() if module.callbacks else [])
        if hasattr(callback, "schedule")
    ]
    feed = feeding(module, Task.TRAINING, case["train"], case["reader_params"])

    @tf.function(reduce_retracing=True)
    def step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(module.loss(labels, model(features, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        if case["sums"]:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply(gradients, model.trainable_variables)

    random, done = np.random.default_rng(case["seed"]), 0
    for _ in range(case["epochs"]):
        features, labels = feed()
        count = len(tf.nest.flatten(labels)[0])
        order = random.permutation(count)
        for begin in range(0, count, case["batch"]):
            rows = order[begin : begin + case["batch"]]
            batch = tf.nest.map_structure(lambda part, rows=rows: part[rows], (features, labels))
            if not optimizer.built:
                model(batch[0])
                optimizer.build(model.trainable_variables)
            for schedule in schedules:
                optimizer.learning_rate.assign(schedule(int(optimizer.iterations)))
            step(*batch)
            done += 1
            if done % case["look_steps"] == 0:
                yield done, model
    if done % case["look_steps"]:
        yield done, model


def main(case: Mapping[str, Any]) -> None:
    section = ModelSection(model_zoo=case["model_zoo"], model_def=case["model_def"])
    module = load_module(section)
    test = feeding(module, Task.EVALUATION, case["test"], case["reader_params"])()
    print_curve(
        case,
        (
            (done, partial(evaluate, module, model, test, case))
            for done, model in train(module, case)
        ),
    )


def print_curve(case: Mapping[str, Any], looks: Iterable[tuple[int, Callable[[], float]]]) -> None:
    """Print the curve of a run of (steps so far, what computes the metric)."""
    curve: list[tuple[int, float, float]] = []
    looked_s = 0.0
    for done, metric in looks:
        begin_s = time.time()
        curve.append((done, begin_s - case["began_at"] - looked_s, metric()))
        looked_s += time.time() - begin_s
    print(json.dumps([(done / curve[-1][0], seconds, value) for done, seconds, value in curve]))


def evaluate(
    module: ModelModule, model: keras.Model, test: tuple[Any, Any], case: Mapping[str, Any]
) -> float:
    features, labels = test
    assert module.eval_metrics_fn is not None
    metrics: Any = module.eval_metrics_fn()
    predictions: Any = None
    for begin in range(0, len(tf.nest.flatten(labels)[0]), 512):
        part = tf.nest.map_structure(lambda all_, at=begin: all_[at : at + 512], (features, labels))
        predictions = model(part[0], training=False)
        seen, expected, metric = predictions, part[1], metrics
        for name in case["metric"].split("/"):
            metric = metric[name]
            if isinstance(seen, dict):
                seen, expected = seen[name], expected[name]
        metric.update_state(expected, seen)
    return float(metric.result())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
