"""A job with SIGKILL to a random worker, once training has begun.

Among all tests one seed runs, a sixth as long and with at most two kills. `make churn` runs twenty
whole ones, with up to eight kills every 1 to 4 s, and prints a line for each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import churn
from tests.conftest import ROOT, Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

MINIBATCH = 32
COPIES, MOST, EVERY_S = (500, 8, (1.0, 4.0)) if churn.SEEDS else (40, 2, (0.5, 2.0))
PACE_S = 0.04
"""With three workers 375 steps, those of the short job, take 5 s at least."""
RECORDS = 150 * COPIES


@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_a_job_whose_workers_are_killed_all_the_time_loses_nothing(
    seed: int, start_job: Callable[..., Job], iris_csv: Callable[..., Path], tmp_path: Path
) -> None:
    choose = random.Random(seed)
    churn.write_paced(ROOT / "model_zoo/iris.py", tmp_path, "iris_paced", PACE_S)
    job = start_job(
        model_zoo=tmp_path,
        model_def="iris_paced",
        training_data=iris_csv(COPIES),
        validation_data=iris_csv(1),
        num_epochs=2,
        num_workers="1:3",
        num_ps_pods=2,
        minibatch_size=MINIBATCH,
        sync=False,
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
