"""Every module of the zoo learns, on parameter servers and on a ring as with plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import open_reader
from elasticdl.model.input import Feeder
from elasticdl.shard import Task
from model_zoo import make_data
from tests.contract.ps_stage import Stage
from tests.model_zoo.zoo_training import (
    ZOO,
    Case,
    OnServers,
    all_records,
    batches,
    load,
    open_data,
    take,
    train_alike,
)

pytestmark = pytest.mark.contract
CRITEO: dict[str, Any] = {"format": "csv", "delimiter": "tab", "header": False}
IMAGES = 192
CASES = (
    Case("iris", "iris", "csv", epochs=6, size=20, reaches={"accuracy": 0.7}),
    Case(
        "iris_sqlite",
        "iris",
        "sqlite",
        epochs=6,
        size=20,
        train="iris",
        test="iris",
        reader_params={"table": "train"},
        reaches={"accuracy": 0.7},
    ),
    Case("digits", "digits", "npz", epochs=1, size=48, reaches={"accuracy": 0.5}),
    Case(
        "digits_subclass.CustomModel",
        "digits_tfrecord",
        "tfrecord",
        epochs=1,
        size=48,
        reaches={"accuracy": 0.5},
    ),
    Case(
        "digits_two_outputs",
        "digits",
        "npz",
        epochs=2,
        size=48,
        reaches={"digit_accuracy": 0.8, "even_accuracy": 0.7},
    ),
    Case(
        "breast_cancer",
        "breast_cancer",
        "parquet",
        epochs=5,
        size=64,
        reaches={"accuracy": 0.85, "auc": 0.9},
    ),
    Case("mnist", "mnist", "npz", records=IMAGES, params={"filters": 4, "units": 16}, size=16),
    Case(
        "mnist_subclass.CustomModel",
        "mnist",
        "npz",
        records=IMAGES,
        params={"filters": 4, "dropout": 0.0},
        size=16,
    ),
    Case("cifar10", "cifar10", "tfrecord", records=IMAGES, params={"filters": 4}, size=16),
    Case(
        "cifar10_subclass.CustomModel",
        "cifar10",
        "tfrecord",
        records=IMAGES,
        params={"filters": 8},
        size=16,
    ),
    Case(
        "resnet20",
        "cifar10",
        "tfrecord",
        records=IMAGES,
        params={"blocks": 1, "filters": 4},
        size=16,
    ),
    Case(
        "resnet50",
        "cifar10",
        "tfrecord",
        records=IMAGES,
        params={"depths": "1 1", "filters": 4},
        size=16,
    ),
    Case("census_dnn", "census", "csv", records=1600, tables=1),
    Case("census_wide_deep", "census", "csv", records=1600, tables=3),
    Case(
        "deepfm",
        "criteo",
        "tsv",
        records=1600,
        params={"hidden": 16, "hash_bins": 5000},
        reader_params=CRITEO,
        tables=2,
    ),
    *(
        Case(name, "criteo", "npz", records=1600, params={"hidden": 16}, tables=tables)
        for name, tables in (("deepfm_ids", 2), ("dcn", 1), ("xdeepfm", 2), ("dlrm", 1))
    ),
    Case("two_tower", "ratings", "npz", records=6400, size=256, tables=3),
    Case(
        "text_cnn", "reviews", "csv", records=3000, epochs=2, params={"hash_bins": 5000}, tables=1
    ),
    Case(
        "transformer",
        "tokens",
        "npz",
        records=640,
        size=32,
        params={"depth": 1, "heads": 1},
        tables=2,
    ),
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a data set once; its folder."""
    made: dict[tuple[str, int], Path] = {}

    def make(name: str, records: int = 0) -> Path:
        if (name, records) not in made:
            made[name, records] = tmp_path_factory.mktemp(name)
            make_data.MAKERS[name](made[name, records], records)
        return made[name, records]

    return make


def test_no_module_of_the_zoo_is_left_out() -> None:
    modules = {path.stem for path in ZOO.glob("*.py")} - {"make_data"}
    assert {case.model_def.partition(".")[0] for case in CASES} == modules


@pytest.mark.parametrize("case", CASES, ids=[case.model_def for case in CASES])
def test_a_module_trains_on_servers_and_on_a_ring_as_with_plain_keras(
    data: Callable[..., Path], case: Case
) -> None:
    trained = train_alike(case, data(case.data, case.records))
    plain = np.array(trained.losses["plain"])
    assert np.mean(plain[-4:]) < np.mean(plain[:4]), "plain Keras does not learn"
    for name, least in case.reaches.items():
        assert trained.plain[name] >= least, trained.plain
    for system in ("ring", "servers"):
        losses = np.array(trained.losses[system])
        # Floats differ in the order of their sums, which later steps amplify.
        np.testing.assert_allclose(losses[:5], plain[:5], rtol=1e-4, err_msg=system)
        np.testing.assert_allclose(losses, plain, rtol=0.05, err_msg=system)
    assert trained.apart < 0.02
    for name, value in trained.plain.items():
        assert trained.servers[name] == pytest.approx(value, abs=0.03), name
    assert trained.tables >= case.tables, "embeddings that no server holds"


def test_the_processor_of_predictions_writes_a_row_for_each(
    data: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREDICTIONS_DIR", str(tmp_path / "out"))
    module = load("iris_sqlite")
    reader = open_data(module, data("iris") / "iris.sqlite", {"table": "test"})
    _, count = all_records(reader)
    assert module.prediction_outputs_processor is not None
    processor = module.prediction_outputs_processor()
    for features, labels in batches(module, reader, Task.PREDICTION, 20):
        assert labels is None
        processor.process(module.custom_model()(features).numpy(), 3)
    rows = (tmp_path / "out" / "worker-3.csv").read_text().splitlines()
    assert len(rows) == count == 30
    species, probability = rows[0].split(",")
    assert species in ("0", "1", "2")
    assert 1 / 3 <= float(probability) <= 1


# Keras 3.15 on NumPy 2.4, in `save_weights`: nothing of ours.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_exported_towers_answer_as_on_the_servers_for_any_number_of_candidates(
    data: Callable[..., Path], tmp_path: Path
) -> None:
    module = load("two_tower")
    reader = open_data(module, data("ratings", 6400) / "train.npz", {})
    training = batches(module, reader, Task.TRAINING, 256, 1)
    features, _ = next(training)
    with closing(Stage(2)) as stage:
        servers = OnServers(module, {}, features)
        servers.begin(stage.pool())
        for _ in range(5):
            given, labels = next(training)
            servers.train(given, labels, None)
        servers.export(tmp_path / "export")
        serve = tf.saved_model.load(tmp_path / "export").signatures["serving_default"]
        for candidates in (3, 50):
            items = (features["items"][:, :1] + np.arange(candidates)) % 1000
            asked = {"user": features["user"], "items": items}
            (answer,) = serve(**asked).values()
            np.testing.assert_allclose(answer, servers.predict(asked), rtol=1e-4, atol=1e-6)
            assert np.std(answer) > 0.01


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


@pytest.mark.parametrize("case", CASES, ids=[case.model_def for case in CASES])
def test_prediction_needs_no_labels(data: Callable[..., Path], case: Case) -> None:
    module = load(case.model_def)
    origin = data(case.data, case.records) / f"{case.test}.{case.suffix}"
    reader = open_data(module, origin, case.reader_params)
    records, _ = all_records(reader)
    batch = Feeder(module, Task.PREDICTION, reader.metadata)(take(records, np.arange(5)))
    assert batch is not None
    features, labels = batch
    assert labels is None
    assert {len(one) for one in tf.nest.flatten(features)} == {5}
