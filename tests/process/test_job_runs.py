"""Whole jobs, started from the command line, to which nothing happens: trained, evaluated,
predicted from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Job, write_iris

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 records."""
    return write_iris(tmp_path_factory.mktemp("data") / "iris.csv", 8)


@pytest.fixture(scope="module")
def trained(start_jobs: Callable[..., Job], data: Path) -> Job:
    """By the issue's own command, which leaves checkpoints, too."""
    job = start_jobs(
        model_def="iris",
        training_data=data,
        validation_data=data,
        num_epochs=5,
        num_workers="1:3",
        num_ps_pods=2,
        output=data.parent / "export",
        checkpoint_steps=20,
    )
    code, output = job.finish()
    assert code == 0, output
    return job


def test_the_issues_own_command_ends_with_a_clean_receipt_and_an_export(
    trained: Job, data: Path
) -> None:
    total = trained.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"], total["repeated"]) == (
        6000,
        6000,
        0,
        0,
    )
    assert [epoch["trained"] for epoch in trained.receipt()["epochs"]] == [1200] * 5
    assert (data.parent / "export" / "saved_model.pb").exists()
    assert trained.final("accuracy") > 0.9


def test_a_checkpoint_is_evaluated_on_another_number_of_servers(
    trained: Job, start_job: Callable[..., Job], data: Path
) -> None:
    checkpoints = trained.directory / "checkpoints"
    job = start_job(
        "evaluate",
        model_def="iris",
        validation_data=data,
        num_workers=1,
        num_ps_pods=3,
        checkpoint_dir_for_init=checkpoints,
    )
    code, output = job.finish()
    assert code == 0, output
    assert job.final("accuracy") == pytest.approx(trained.final("accuracy"), abs=0.005)
    newest = max(int(path.name.removeprefix("version-")) for path in checkpoints.glob("version-*"))
    assert job.metrics()[-1]["version"] == newest > 0


def test_a_checkpoint_gives_predictions_on_another_number_of_servers(
    trained: Job, start_job: Callable[..., Job], data: Path, tmp_path: Path
) -> None:
    job = start_job(
        "predict",
        model_def="iris",
        prediction_data=data,
        num_workers=1,
        num_ps_pods=1,
        checkpoint_dir_for_init=trained.directory / "checkpoints",
        output=tmp_path / "predictions",
    )
    code, output = job.finish()
    assert code == 0, output
    parts = [np.load(path) for path in sorted((tmp_path / "predictions").glob("*.npz"))]
    assert sum(len(part[part.files[0]]) for part in parts) == 1200


def test_a_job_over_thousands_of_files_trains_each_record_once(
    start_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Whatever looks at all files for each file shows here: the job takes minutes instead of
    seconds.
    """
    header, *rows = write_iris(tmp_path / "iris.csv", 14).read_text().splitlines()
    folder = tmp_path / "files"
    folder.mkdir()
    for number, row in enumerate(rows[:2000]):
        (folder / f"part-{number:05d}.csv").write_text(f"{header}\n{row}\n")
    job = start_job(model_def="iris", training_data=folder, num_workers=2)
    code, output = job.finish(240)
    assert code == 0, output
    total = job.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"], total["repeated"]) == (
        2000,
        2000,
        0,
        0,
    )
