"""What a ring leaves on disk is used as any other checkpoint: evaluated and resumed; nobody has to
say who made it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Job
from tests.ring.ring_jobs import LIMIT_S, finished, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def trained(
    start_jobs: Callable[..., Job], digits: Path, tmp_path_factory: pytest.TempPathFactory
) -> Job:
    """A job that is done, with its newest checkpoint at its last version."""
    output = tmp_path_factory.mktemp("output") / "export"
    job = start(
        start_jobs,
        digits,
        num_workers=2,
        num_epochs=6,
        evaluation_steps=200,
        checkpoint_steps=60,
        output=output,
    )
    finished(job, epochs=6, accuracy=0.9)
    assert (output / "saved_model.pb").exists()
    return job


def test_two_workers_train_evaluate_and_leave_checkpoints(trained: Job) -> None:
    evaluated = [row["version"] for row in trained.metrics() if row["kind"] == "evaluation"]
    assert evaluated == [200, 270]
    kept = sorted(
        int(path.parent.name.removeprefix("version-"))
        for path in trained.directory.glob("checkpoints/*/manifest.json")
    )
    assert kept == [180, 240, 270]


def test_a_checkpoint_of_a_ring_is_evaluated_though_no_flag_says_that_it_is_one(
    trained: Job, start_job: Callable[..., Job], digits: Path
) -> None:
    job = start_job(
        "evaluate",
        model_def="digits",
        validation_data=digits / "test.npz",
        checkpoint_dir_for_init=trained.directory / "checkpoints",
        num_workers=2,
    )
    code, output = job.finish(2 * LIMIT_S)
    assert code == 0, output + job.tails()
    assert job.final("accuracy") == trained.final("accuracy")
    assert job.metrics()[-1]["version"] == trained.metrics()[-1]["version"] > 0
