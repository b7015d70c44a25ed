"""Whole jobs on a ring, started as a user does, and what is true at their end."""

from __future__ import annotations

from pathlib import Path

RECORDS = 1437
"""Of the digits to train on."""


def start(start_job, digits: Path, **flags):
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


def formed(members: int, after: int = 0):
    """So many have the weights, in a generation after that one: of one that is still forming some may not have them yet."""

    def is_formed(status) -> bool:
        ring = status["ring"]
        return len(ring["members"]) >= members and after < ring["generation"] == ring["formed"]

    return is_formed


def finished(job, epochs: int, accuracy: float = 0.95) -> dict[str, int]:
    """The receipt's total of a job that ended well and lost nothing."""
    code, output = job.finish()
    assert code == 0, output + job.tails()
    total = job.receipt()["total"]
    assert total["trained"] == total["expected"] == epochs * RECORDS
    assert (total["lost"], total["repeated"]) == (0, 0)
    assert job.final("accuracy") >= accuracy
    return total
