"""A ring whose checkpoints and evaluations are due inside shards: every step is booked, and the job
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Job
from tests.ring.ring_jobs import finished, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def test_a_job_ends_though_boundaries_are_inside_shards(
    start_job: Callable[..., Job], digits: Path
) -> None:
    """72 steps in shards of 8: neither a checkpoint nor an evaluation is due where a shard ends,
    but for one checkpoint.
    """
    flags = {
        "num_workers": 2,
        "minibatch_size": 20,
        "num_epochs": 1,
        "checkpoint_steps": 7,
        "evaluation_steps": 30,
    }
    job = start(start_job, digits, **flags)
    finished(job, epochs=1, accuracy=0.5)
    assert [row["version"] for row in job.metrics() if row["kind"] == "evaluation"] == [30, 60, 72]
    kept = max(
        int(path.parent.name.removeprefix("version-"))
        for path in job.directory.glob("checkpoints/*/manifest.json")
    )
    assert kept == 72, "with all steps in it"
