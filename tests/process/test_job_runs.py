"""Whole jobs, started from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def test_the_issues_own_command_ends_with_a_clean_receipt_and_an_export(start_job, iris_csv, tmp_path):
    data = iris_csv(8)
    job = start_job(
        model_def="iris",
        training_data=data,
        validation_data=data,
        num_epochs=5,
        num_workers="1:3",
        num_ps_pods=2,
        output=tmp_path / "export",
    )
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"], total["repeated"]) == (6000, 6000, 0, 0)
    assert [epoch["trained"] for epoch in job.receipt()["epochs"]] == [1200] * 5
    assert (tmp_path / "export" / "saved_model.pb").exists()
    assert job.final("accuracy") > 0.9


def test_a_worker_killed_in_the_middle_costs_at_most_one_minibatch(start_job, iris_csv):
    import random

    job = start_job(
        model_def="iris",
        training_data=iris_csv(400),
        validation_data=iris_csv(1),
        num_epochs=2,
        num_workers=2,
        num_ps_pods=2,
        minibatch_size=16,
    )
    job.wait_until("training is under way", lambda status: status["records"]["trained"] > 3000)
    assert job.kill_one("worker", random.Random(1))
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    assert total["trained"] == total["expected"] == 2 * 400 * 150
    assert total["lost"] == 0
    assert total["repeated"] <= 16
    assert any(event.get("cause") == "infrastructure" for event in job.events())


def test_a_killed_parameter_server_comes_back_from_the_checkpoint(start_job, iris_csv):
    import random

    job = start_job(
        model_def="iris",
        training_data=iris_csv(200),
        num_epochs=2,
        num_workers=2,
        num_ps_pods=2,
        minibatch_size=16,
        checkpoint_steps=200,
    )
    job.wait_until("a checkpoint is there", lambda status: len(status["checkpoints"]) >= 1)
    assert job.kill_one("ps", random.Random(2))
    code, output = job.finish()
    assert code == 0, output
    assert job.receipt()["total"]["lost"] == 0
    assert any("ps-" in str(event.get("process")) for event in job.events())


def test_checkpoints_restore_to_another_number_of_servers_for_training_evaluation_and_prediction(start_job, iris_csv, tmp_path):
    data = iris_csv(8)
    first = start_job(
        model_def="iris", training_data=data, validation_data=data, num_epochs=5, num_workers=1, num_ps_pods=1, checkpoint_steps=20
    )
    assert first.finish()[0] == 0
    checkpoints = first.directory / "checkpoints"
    evaluation = start_job(
        "evaluate", model_def="iris", validation_data=data, num_workers=1, num_ps_pods=3, checkpoint_dir_for_init=checkpoints
    )
    code, output = evaluation.finish()
    assert code == 0, output
    assert evaluation.final("accuracy") == pytest.approx(first.final("accuracy"), abs=0.005)
    newest = max(int(path.name.removeprefix("version-")) for path in checkpoints.glob("version-*"))
    assert evaluation.metrics()[-1]["version"] == newest > 0
    prediction = start_job(
        "predict",
        model_def="iris",
        prediction_data=data,
        num_workers=1,
        num_ps_pods=2,
        checkpoint_dir_for_init=checkpoints,
        output=tmp_path / "predictions",
    )
    code, output = prediction.finish()
    assert code == 0, output
    import numpy as np

    parts = [np.load(path) for path in sorted((tmp_path / "predictions").glob("*.npz"))]
    assert sum(len(part[part.files[0]]) for part in parts) == 1200


def test_ctrl_c_drains_and_the_job_can_be_resumed(start_job, iris_csv, tmp_path):
    import signal

    data = iris_csv(200)
    flags = {"model_def": "iris", "training_data": data, "num_epochs": 2, "num_workers": 2, "minibatch_size": 16}
    job = start_job(**flags, job_dir=tmp_path / "resumed")
    job.wait_until("training is under way", lambda status: status["records"]["trained"] > 3000)
    job.process.send_signal(signal.SIGINT)
    code, output = job.finish()
    assert code == 130, output
    assert "--resume" in output
    before = job.receipt()["total"]["trained"]
    assert 0 < before < 60_000
    again = start_job("train", "--resume", **flags, job_dir=tmp_path / "resumed")
    code, output = again.finish()
    assert code == 0, output
    total = again.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"]) == (60_000, 60_000, 0)


def test_master_ps_and_command_line_stay_small_and_free_of_tensorflow(start_job, iris_csv):
    job = start_job(model_def="iris", training_data=iris_csv(400), num_epochs=1, num_workers=1, num_ps_pods=1, minibatch_size=16)
    job.wait_until("training is under way", lambda status: status["records"]["trained"] > 1000)
    for pid in [job.process.pid, *job.pids("ps"), *master_pids(job)]:
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "tensorflow" not in maps, pid
        status = Path(f"/proc/{pid}/status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        assert resident_kb < 120 * 1024, (pid, resident_kb)
    assert job.finish()[0] == 0


def master_pids(job) -> list[int]:
    return [int(json.loads((job.directory / "master.json").read_text())["pid"])]
