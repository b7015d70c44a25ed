"""The same job with SIGKILL to a random worker every few seconds, from start to end.

CI runs one seed, of a sixth of the length; `make churn` runs twenty whole ones and prints a line
for each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import churn
from tests.conftest import Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

MINIBATCH = 16
COPIES, MOST, EVERY_S = (500, 8, (1.0, 4.0)) if churn.SEEDS else (80, 2, (0.5, 2.0))
RECORDS = 150 * COPIES


@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_a_job_whose_workers_are_killed_all_the_time_loses_nothing(
    seed: int, start_job: Callable[..., Job], iris_csv: Callable[..., Path]
) -> None:
    choose = random.Random(seed)
    job = start_job(
        model_def="iris",
        training_data=iris_csv(COPIES),
        validation_data=iris_csv(1),
        num_epochs=2,
        num_workers="1:3",
        num_ps_pods=2,
        minibatch_size=MINIBATCH,
        seed=seed,
    )
    job.wait_until("training began", lambda status: status["records"]["trained"] > 0)
    kills = len(
        churn.kill_until_it_ends(
            job, choose, every_s=EVERY_S, victims=churn.live("worker"), most=MOST
        )
    )
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    print(f"seed {seed}: kills {kills}, {total}, accuracy {job.final('accuracy'):.3f}")
    assert kills >= 1
    assert total["lost"] == 0
    assert total["trained"] == total["expected"] == 2 * RECORDS
    assert total["repeated"] <= kills * MINIBATCH
    assert job.final("accuracy") >= 0.93
