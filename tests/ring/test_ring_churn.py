"""`digits` on a ring with SIGKILL of a random member, rank 0 included, every five seconds from
start to end.

One seed among all tests, of a twelfth of the length; `make churn-ring` runs twenty whole ones and
prints a line for each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from model_zoo import make_data
from tests import churn
from tests.conftest import Job

pytestmark = pytest.mark.process

EPOCHS, MOST = (180, 12) if churn.SEEDS else (15, 2)
RECORDS = 1437
WORKERS = ("1:2", "1:3", "1:4", "2:4")
EVERY_S = (3.5, 6.5)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    make_data.MAKERS["digits"](folder, 0)
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_a_ring_whose_members_are_killed_all_the_time_trains_each_record_once(
    seed: int, start_job: Callable[..., Job], digits: Path
) -> None:
    choose = random.Random(seed)
    workers = choose.choice(WORKERS)
    job = start_job(
        model_def="digits",
        distribution_strategy="AllreduceStrategy",
        training_data=digits / "train.npz",
        validation_data=digits / "test.npz",
        minibatch_size=32,
        num_epochs=EPOCHS,
        num_workers=workers,
        checkpoint_steps=1000,
        evaluation_steps=2000,
        seed=seed,
    )
    kills = churn.kill_until_it_ends(
        job, choose, every_s=EVERY_S, victims=churn.spare_members(), most=MOST
    )
    code, output = job.finish(600)
    assert code == 0, output + job.tails()
    total = job.receipt()["total"]
    formed = sum(
        event["kind"] == "ring" and "is complete" in event["text"] for event in job.events()
    )
    print(
        f"seed {seed}, {workers} workers: killed {', '.join(map(str, kills))}; {formed} rings,"
        f" {total}, {job.final('accuracy'):.4f}"
    )
    assert len(kills) >= 1
    assert total["trained"] == total["expected"] == EPOCHS * RECORDS
    assert (total["lost"], total["repeated"]) == (0, 0)
    assert job.final("accuracy") >= 0.95
