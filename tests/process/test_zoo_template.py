"""What `elasticdl zoo init` writes is a model zoo that trains."""

from __future__ import annotations

import pytest

from elasticdl.cli import main

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_the_module_of_a_new_zoo_learns_its_data(start_job, tmp_path) -> None:
    assert main.run(["zoo", "init", str(tmp_path / "zoo")]) == 0
    data = tmp_path / "zoo/example.csv"
    job = start_job(model_zoo=tmp_path / "zoo", model_def="example", training_data=data, validation_data=data, num_epochs=40)
    code, output = job.finish()
    assert code == 0, output + job.tails()
    assert job.receipt()["total"]["lost"] == 0
    assert job.final("accuracy") >= 0.9
