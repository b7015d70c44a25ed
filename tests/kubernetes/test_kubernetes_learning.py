"""A whole job on a real cluster learns what it learns on one machine."""

from __future__ import annotations

import json

import pytest

from tests.kubernetes.jobs import DATA, Jobs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
CRITEO = "format=csv;delimiter=tab;header=false"


def test_deepfm_learns_as_well_as_on_one_machine(jobs: Jobs) -> None:
    planted = json.loads((jobs.make_data("criteo", 30_000) / "truth.json").read_text())[
        "planted_auc"
    ]
    job = jobs.submit(
        "deepfm",
        model_def="deepfm",
        training_data=f"{DATA}/criteo/train.tsv",
        validation_data=f"{DATA}/criteo/test.tsv",
        data_reader_params=CRITEO,
        num_epochs=3,
        minibatch_size=256,
        num_workers=2,
        num_ps_pods=2,
        output=f"{DATA}/deepfm/export",
        checkpoint_steps=100,
    )
    job.done()
    assert job.receipt()["repeated"] == 0
    assert planted - 0.05 < job.metrics()["auc"] < planted + 0.005
    assert (job.directory / "export/saved_model.pb").exists()
    assert list(job.directory.glob("checkpoints/version-*/manifest.json"))
