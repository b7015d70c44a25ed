"""Every module of the zoo learns, with plain Keras and its own functions, on its own data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import Reader, Records, open_custom_reader, open_reader
from elasticdl.job_sections import ModelSection
from elasticdl.model.input import Feeder
from elasticdl.model.module import ModelModule, load_module
from elasticdl.shard import Shard, ShardId, Task
from model_zoo import make_data

pytestmark = pytest.mark.contract
ZOO = Path(__file__).parents[2] / "model_zoo"
CRITEO: dict[str, Any] = {"format": "csv", "delimiter": "tab", "header": False}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a data set once; its folder."""
    made: dict[str, Path] = {}

    def make(name: str, records: int = 0) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            make_data.MAKERS[name](made[name], records)
        return made[name]

    return make


def load(model_def: str) -> ModelModule:
    return load_module(ModelSection(model_zoo=str(ZOO), model_def=model_def))


def open_data(module: ModelModule, origin: Path, params: Mapping[str, Any]) -> Reader:
    if module.custom_data_reader is not None:
        return open_custom_reader(module.custom_data_reader, str(origin), params)
    return open_reader(str(origin), params)


def take(records: Records, rows: np.ndarray) -> Records:
    return (
        {name: column[rows] for name, column in records.items()}
        if isinstance(records, Mapping)
        else records[rows]
    )


def all_records(reader: Reader) -> tuple[Any, int]:
    """Everything as one block."""
    blocks = [
        block
        for source in reader.sources()
        for block in reader.read(Shard(ShardId(1), source.name, 0, source.records))
    ]
    parts: list[Any] = [block.records for block in blocks]
    count = sum(block.count for block in blocks)
    if isinstance(parts[0], Mapping):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, count
    return np.concatenate(parts), count


def batch_of(feeder: Feeder, records: Records) -> tuple[Any, Any]:
    batch = feeder(records)
    assert batch is not None
    return batch


def windows(records: Records, count: int, size: int, seed: int | None) -> Iterator[Records]:
    order = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
    for begin in range(0, count, size):
        yield take(records, order[begin : begin + size])


def train(
    module: ModelModule, reader: Reader, *, epochs: int, size: int, **params: Any
) -> keras.Model:
    """feed -> loss -> gradients -> optimizer, as plainly as can be.

    The learning rate follows the module's schedule.
    """
    keras.utils.set_random_seed(1)
    model = module.custom_model(**params)
    optimizer = module.optimizer()
    schedules = [
        callback.schedule
        for callback in (module.callbacks() if module.callbacks else [])
        if hasattr(callback, "schedule")
    ]
    feeder = Feeder(module, Task.TRAINING, reader.metadata)
    records, count = all_records(reader)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(module.loss(labels, model(features, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    for epoch in range(epochs):
        for window in windows(records, count, size, epoch):
            features, labels = batch_of(feeder, window)
            if not optimizer.built:
                model(features)
                optimizer.build(model.trainable_variables)
            for schedule in schedules:
                optimizer.learning_rate.assign(schedule(int(optimizer.iterations)))
            step(features, labels)
    return model


def evaluate(module: ModelModule, reader: Reader, model: keras.Model) -> dict[str, float]:
    """Values of eval_metrics_fn; those of outputs as `output/name`."""
    records, count = all_records(reader)
    feeder = Feeder(module, Task.EVALUATION, reader.metadata)
    assert module.eval_metrics_fn is not None
    metrics = {name: as_metric(metric) for name, metric in flat(module.eval_metrics_fn())}
    for window in windows(records, count, 512, None):
        features, labels = batch_of(feeder, window)
        predictions = model(features, training=False)
        for name, metric in metrics.items():
            output = name.rpartition("/")[0]
            metric.update_state(
                labels[output] if output else labels, predictions[output] if output else predictions
            )
    return {name: float(metric.result()) for name, metric in metrics.items()}


def flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, metric in metrics.items():
        if isinstance(metric, Mapping):
            yield from flat(metric, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", metric


def as_metric(metric: Any) -> keras.metrics.Metric:
    return (
        metric
        if isinstance(metric, keras.metrics.Metric)
        else keras.metrics.MeanMetricWrapper(metric, name="function")
    )


def learn(
    data: Path, model_def: str, names: tuple[str, str], params: Mapping[str, Any], **how: Any
) -> dict[str, float]:
    module = load(model_def)
    model = train(module, open_data(module, data / names[0], params), **how)
    values = evaluate(module, open_data(module, data / names[1], params), model)
    assert all(math.isfinite(value) for value in values.values())
    return values


def test_iris_learns_from_csv(data: Callable[..., Path]) -> None:
    assert (
        learn(data("iris"), "iris", ("train.csv", "test.csv"), {}, epochs=30, size=16)["accuracy"]
        >= 0.9
    )


def test_iris_learns_through_a_reader_of_its_own(data: Callable[..., Path]) -> None:
    module = load("iris_sqlite")
    database = data("iris") / "iris.sqlite"
    model = train(module, open_data(module, database, {"table": "train"}), epochs=30, size=16)
    assert (
        evaluate(module, open_data(module, database, {"table": "test"}), model)["accuracy"] >= 0.9
    )


def test_the_processor_of_predictions_writes_a_row_for_each(
    data: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREDICTIONS_DIR", str(tmp_path / "out"))
    module = load("iris_sqlite")
    reader = open_data(module, data("iris") / "iris.sqlite", {"table": "test"})
    records, count = all_records(reader)
    feeder = Feeder(module, Task.PREDICTION, reader.metadata)
    assert module.prediction_outputs_processor is not None
    processor = module.prediction_outputs_processor()
    for window in windows(records, count, 20, None):
        features, labels = batch_of(feeder, window)
        assert labels is None
        processor.process(module.custom_model()(features).numpy(), 3)
    rows = (tmp_path / "out" / "worker-3.csv").read_text().splitlines()
    assert len(rows) == count == 30
    species, probability = rows[0].split(",")
    assert species in ("0", "1", "2")
    assert 1 / 3 <= float(probability) <= 1


def test_digits_learn_from_npz(data: Callable[..., Path]) -> None:
    assert (
        learn(data("digits"), "digits", ("train.npz", "test.npz"), {}, epochs=8, size=32)[
            "accuracy"
        ]
        >= 0.95
    )


def test_digits_learn_as_a_subclassed_model_from_tfrecord(data: Callable[..., Path]) -> None:
    names = ("train.tfrecord", "test.tfrecord")
    assert (
        learn(data("digits_tfrecord"), "digits_subclass.CustomModel", names, {}, epochs=4, size=32)[
            "accuracy"
        ]
        >= 0.95
    )


def test_digits_with_two_outputs_learn_both(data: Callable[..., Path]) -> None:
    values = learn(
        data("digits"), "digits_two_outputs", ("train.npz", "test.npz"), {}, epochs=15, size=32
    )
    assert values["digit/accuracy"] >= 0.93
    assert values["even/accuracy"] >= 0.9


def test_breast_cancer_learns_wide_and_deep(data: Callable[..., Path]) -> None:
    values = learn(
        data("breast_cancer"),
        "breast_cancer",
        ("train.parquet", "test.parquet"),
        {},
        epochs=20,
        size=32,
    )
    assert values["accuracy"] >= 0.93
    assert values["auc"] >= 0.97


@pytest.mark.parametrize(
    ("model_def", "suffix", "params"),
    [("deepfm", "tsv", CRITEO), ("deepfm_ids", "npz", {})],
    ids=["criteo's format", "ids"],
)
def test_deepfm_comes_near_the_planted_optimum(
    data: Callable[..., Path], model_def: str, suffix: str, params: dict[str, Any]
) -> None:
    folder = data("criteo", 30_000)
    planted = json.loads((folder / "truth.json").read_text())["planted_auc"]
    values = learn(
        folder, model_def, (f"train.{suffix}", f"test.{suffix}"), params, epochs=2, size=256
    )
    print(f"{model_def}: AUC {values['auc']:.4f}, planted {planted}")
    assert planted - 0.045 < values["auc"] < planted + 0.005


def test_the_planted_optimum_is_better_than_its_parts(data: Callable[..., Path]) -> None:
    from model_zoo.planted.criteo import auc, draw

    table = draw(20_000)
    assert 0.2 < table.label.mean() < 0.3
    best = auc(table.logit, table.label)
    assert best > 0.78
    noisy = table.logit + np.random.default_rng(1).normal(0, 0.5, len(table.logit))
    assert auc(noisy, table.label) < best - 0.005


def test_both_forms_of_the_planted_data_hold_the_same_records(data: Callable[..., Path]) -> None:
    folder = data("criteo", 30_000)
    rows, count = all_records(open_reader(str(folder / "test.tsv"), CRITEO))
    columns, same = all_records(open_reader(str(folder / "test.npz"), {}))
    assert count == same == 7500
    assert rows[:, 0].astype(int).tolist() == columns["label"][:, 0].astype(int).tolist()
    counts = np.where(rows[:, 1:14] == b"", b"0", rows[:, 1:14]).astype(np.float64)
    assert np.allclose(np.log1p(counts), columns["numbers"], atol=1e-6)
    for field in (0, 25):
        text, number = rows[:, 14 + field], columns["ids"][:, field]
        assert (
            len(np.unique(text))
            == len(np.unique(number))
            == len(set(zip(text.tolist(), number.tolist(), strict=True)))
        )


@pytest.mark.parametrize(
    "model_def", ["iris", "digits", "digits_two_outputs", "breast_cancer", "deepfm", "deepfm_ids"]
)
def test_prediction_needs_no_labels(data: Callable[..., Path], model_def: str) -> None:
    origins: dict[str, tuple[str, str, dict[str, Any]]] = {
        "iris": ("iris", "test.csv", {}),
        "breast_cancer": ("breast_cancer", "test.parquet", {}),
        "deepfm": ("criteo", "test.tsv", CRITEO),
        "deepfm_ids": ("criteo", "test.npz", {}),
    }
    name, file, params = origins.get(model_def, ("digits", "test.npz", {}))
    module = load(model_def)
    reader = open_data(module, data(name, 30_000) / file, params)
    records, _ = all_records(reader)
    feeder = Feeder(module, Task.PREDICTION, reader.metadata)
    features, labels = batch_of(feeder, take(records, np.arange(5)))
    assert labels is None
    assert {len(output) for output in tf.nest.flatten(module.custom_model()(features))} == {5}
