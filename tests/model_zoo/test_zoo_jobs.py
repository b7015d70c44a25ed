"""Modules of the zoo as whole jobs.

`iris` and `iris_sqlite` are the modules of tests/process/test_job_runs.py, `digits` is that of
tests/ring and of a job of tests/kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.preflight_process import check
from model_zoo import make_data
from tests.conftest import ROOT, Job

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


@pytest.mark.parametrize(
    ("name", "model_def", "suffix", "flags"),
    [
        ("digits_tfrecord", "digits_subclass.CustomModel", "tfrecord", {}),
        ("digits", "digits_two_outputs", "npz", {}),
        ("breast_cancer", "breast_cancer", "parquet", {}),
        ("criteo", "deepfm", "tsv", {"data_reader_params": CRITEO}),
    ],
)
def test_modules_that_no_job_shows_pass_the_preflight_of_one(
    data: Callable[..., Path], name: str, model_def: str, suffix: str, flags: dict[str, str]
) -> None:
    """test_zoo_models.py shows that they learn."""
    folder = data(name, 1000 if name == "criteo" else 0)
    job = JobSpec.from_flags(
        Action.TRAIN,
        {
            "model_zoo": str(ROOT / "model_zoo"),
            "model_def": model_def,
            "training_data": str(folder / f"train.{suffix}"),
            "validation_data": str(folder / f"test.{suffix}"),
            **flags,
        },
    )
    found = check(job)
    assert found["ok"], found


def test_deepfm_as_a_job_comes_near_the_planted_optimum(
    start_job: Callable[..., Job], data: Callable[..., Path]
) -> None:
    folder = data("criteo", 30_000)
    planted = json.loads((folder / "truth.json").read_text())["planted_auc"]
    job = start_job(
        model_def="deepfm_ids",
        training_data=folder / "train.npz",
        validation_data=folder / "test.npz",
        num_workers=2,
        num_ps_pods=2,
        num_epochs=2,
        minibatch_size=256,
        embedding_threshold_bytes=0,
    )
    code, output = job.finish()
    assert code == 0, output + job.tails()
    total = job.receipt()["total"]
    assert total["trained"] == total["expected"] > 0
    assert (total["lost"], total["repeated"]) == (0, 0)
    # Asynchronous: about 0.79. It depends on how stale gradients are on a busy machine.
    assert planted - 0.06 < job.final("auc") < planted + 0.005
