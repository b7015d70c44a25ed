"""`digits` on a ring with SIGKILL of a random member, rank 0 included, about every five seconds.

Among all tests one seed runs, a 36th as many steps, with at most three members and two kills.
`make churn-ring` runs twenty whole ones, with up to twelve kills, and prints a line for each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import churn
from tests.conftest import ROOT, Job

pytestmark = pytest.mark.process

EPOCHS, MOST = (180, 12) if churn.SEEDS else (5, 2)
RECORDS = 1437
WORKERS = ("1:2", "1:3", "1:4", "2:4") if churn.SEEDS else ("2:3",)
EVERY_S = (3.5, 6.5)
STEPS = EPOCHS * RECORDS // 32
PACE_S = 0.0 if churn.SEEDS else 0.06
"""The steps of the short job take 13 s at least."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_a_ring_whose_members_are_killed_all_the_time_trains_each_record_once(
    seed: int, start_job: Callable[..., Job], digits: Path, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    workers = choose.choice(WORKERS)
    churn.write_paced(ROOT / "model_zoo/digits.py", tmp_path, "digits_paced", PACE_S)
    job = start_job(
        model_zoo=tmp_path,
        model_def="digits_paced",
        distribution_strategy="AllreduceStrategy",
        training_data=digits / "train.npz",
        validation_data=digits / "test.npz",
        minibatch_size=32,
        num_epochs=EPOCHS,
        num_workers=workers,
        checkpoint_steps=STEPS // 8,
        evaluation_steps=STEPS // 4,
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
