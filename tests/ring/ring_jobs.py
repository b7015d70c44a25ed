"""Whole jobs on a ring, started as a user does, and what is true at their end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Job
from tests.waiting import until

RECORDS = 1437
"""Of the digits to train on."""
EPOCHS = 6
"""Of paced jobs: at their pace they train for longer than a test waits for anything, and what is
left takes seconds in a hurry.
"""
LIMIT_S = 240.0
"""On a busy machine processes take long to import, to compile and to warm up."""


def start(start_job: Callable[..., Job], digits: Path, **flags: Any) -> Job:
    return start_job(
        **{
            "model_def": "digits",
            "distribution_strategy": "AllreduceStrategy",
            "training_data": digits / "train.npz",
            "validation_data": digits / "test.npz",
            "minibatch_size": 32,
            **flags,
        }
    )


@dataclass(frozen=True)
class Paced:
    """A job that trains slowly until it is told to hurry: how fast a machine is does not decide
    what a test sees.
    """

    job: Job
    folder: Path

    def order(self, what: str) -> None:
        """Leave a file that the module looks for."""
        (self.folder / what).touch()

    def ring(self, members: int, after: int = 0) -> dict[str, Any]:
        """The status once a ring of so many is complete, in a generation after that one."""
        return self.job.wait_until(
            f"{members} are in a ring after generation {after}", formed(members, after), LIMIT_S
        )

    def signal(self, status: dict[str, Any], rank: int, number: signal.Signals) -> str:
        """To the member of that rank; its name."""
        name = status["ring"]["members"][rank]
        where = next(process["where"] for process in status["processes"] if process["name"] == name)
        os.kill(int(where.removeprefix("pid ")), number)
        return name

    def cause(self, process: str) -> str:
        """Why it ended, as the events say: a moment after the ring has formed without it."""

        def told() -> str | None:
            return next(
                (
                    event["cause"]
                    for event in self.job.events()
                    if event["process"] == process and event["cause"]
                ),
                None,
            )

        return until(f"the events say why {process} ended", told, LIMIT_S)


def start_paced(
    start_job: Callable[..., Job], digits: Path, zoo: Path, folder: Path, **flags: Any
) -> Paced:
    folder.mkdir(exist_ok=True)
    given = {
        "model_zoo": zoo,
        "model_def": "paced",
        "envs": f"PACED_FOLDER={folder}",
        "num_epochs": EPOCHS,
        **flags,
    }
    return Paced(start(start_job, digits, **given), folder)


def formed(members: int, after: int = 0) -> Callable[[dict[str, Any]], bool]:
    """So many have the weights, in a generation after that one: of one that is still forming some
    may not have them yet.
    """

    def is_formed(status: dict[str, Any]) -> bool:
        ring = status["ring"]
        return len(ring["members"]) == members and after < ring["generation"] == ring["formed"]

    return is_formed


def finished(job: Job, epochs: int, accuracy: float = 0.95) -> dict[str, int]:
    """The receipt's total of a job that ended well and lost nothing."""
    code, output = job.finish(2 * LIMIT_S)
    assert code == 0, output + job.tails()
    total = job.receipt()["total"]
    assert total["trained"] == total["expected"] == epochs * RECORDS
    assert (total["lost"], total["repeated"]) == (0, 0)
    assert job.final("accuracy") >= accuracy
    return total
