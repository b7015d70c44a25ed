"""Every module of the zoo as a whole job: two parameter servers, the commands of
model_zoo/README.md; two workers for one of each kind.

`iris` is the module of most other tests of whole jobs, tests/process/test_job_runs.py first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_zoo import make_data
from tests.conftest import Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
CRITEO = "format=csv;delimiter=tab;header=false"


@pytest.fixture
def data(tmp_path: Path) -> Callable[..., Path]:
    """Makes a data set; its folder."""

    def make(name: str, records: int = 0) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        make_data.MAKERS[name](folder, records)
        return folder

    return make


def run(
    start_job: Callable[..., Job],
    folder: Path,
    model_def: str,
    suffix: str,
    *,
    workers: int = 2,
    **flags: Any,
) -> Job:
    job = start_job(
        model_def=model_def,
        training_data=folder / f"train.{suffix}",
        validation_data=folder / f"test.{suffix}",
        num_workers=workers,
        num_ps_pods=2,
        **flags,
    )
    code, output = job.finish()
    assert code == 0, output + job.tails()
    total = job.receipt()["total"]
    assert total["trained"] == total["expected"] > 0
    assert (total["lost"], total["repeated"]) == (0, 0)
    return job


@pytest.mark.parametrize(
    ("name", "model_def", "suffix", "workers", "epochs", "minibatch_size", "least"),
    [
        ("digits", "digits", "npz", 2, 16, 32, {"accuracy": 0.95}),
        (
            "digits_tfrecord",
            "digits_subclass.CustomModel",
            "tfrecord",
            1,
            8,
            32,
            {"accuracy": 0.95},
        ),
        (
            "digits",
            "digits_two_outputs",
            "npz",
            1,
            20,
            32,
            {"digit_accuracy": 0.92, "even_accuracy": 0.9},
        ),
        ("breast_cancer", "breast_cancer", "parquet", 1, 20, 32, {"accuracy": 0.92, "auc": 0.96}),
    ],
)
def test_a_module_learns_as_a_job(
    start_job: Callable[..., Job],
    data: Callable[..., Path],
    name: str,
    model_def: str,
    suffix: str,
    workers: int,
    epochs: int,
    minibatch_size: int,
    least: dict[str, float],
) -> None:
    job = run(
        start_job,
        data(name),
        model_def,
        suffix,
        workers=workers,
        num_epochs=epochs,
        minibatch_size=minibatch_size,
    )
    for metric, value in least.items():
        assert job.final(metric) >= value


@pytest.mark.parametrize(
    ("model_def", "suffix", "workers"), [("deepfm", "tsv", 1), ("deepfm_ids", "npz", 2)]
)
def test_deepfm_as_a_job_comes_near_the_planted_optimum(
    start_job: Callable[..., Job],
    data: Callable[..., Path],
    model_def: str,
    suffix: str,
    workers: int,
) -> None:
    folder = data("criteo", 30_000)
    planted = json.loads((folder / "truth.json").read_text())["planted_auc"]
    flags = {"data_reader_params": CRITEO} if suffix == "tsv" else {"embedding_threshold_bytes": 0}
    job = run(
        start_job,
        folder,
        model_def,
        suffix,
        workers=workers,
        num_epochs=3,
        minibatch_size=256,
        **flags,
    )
    print(f"{model_def}: AUC {job.final('auc'):.4f}, planted {planted}")
    assert planted - 0.05 < job.final("auc") < planted + 0.005


def test_own_reader_and_own_processor_as_jobs(
    start_job: Callable[..., Job], data: Callable[..., Path], tmp_path: Path
) -> None:
    database = data("iris") / "iris.sqlite"
    flags = {"model_def": "iris_sqlite", "num_workers": 1, "num_ps_pods": 1}
    training = start_job(
        **flags,
        training_data=database,
        validation_data=database,
        data_reader_params="table=train",
        num_epochs=60,
        minibatch_size=16,
        checkpoint_steps=100,
    )
    code, output = training.finish()
    assert code == 0, output + training.tails()
    assert training.receipt()["total"]["trained"] == 60 * 120
    assert training.final("accuracy") >= 0.9
    prediction = start_job(
        "predict",
        **flags,
        prediction_data=database,
        data_reader_params="table=test",
        checkpoint_dir_for_init=training.directory / "checkpoints",
        envs=f"PREDICTIONS_DIR={tmp_path / 'out'}",
    )
    code, output = prediction.finish()
    assert code == 0, output + prediction.tails()
    rows = [
        line
        for path in (tmp_path / "out").glob("worker-*.csv")
        for line in path.read_text().splitlines()
    ]
    assert len(rows) == 30
