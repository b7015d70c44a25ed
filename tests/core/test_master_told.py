"""What the master says of its job, in words that hold."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.core


def test_a_shard_of_which_nothing_was_reported_yet_is_not_said_to_stand_at_zero(bench):
    job = bench(num_workers=1)
    job.up()
    lease = job.lease()
    records = lease.shard.records

    def doing() -> str:
        return next(process.shard for process in job.state.status().processes if process.name == "worker-0")

    assert doing() == f"training shard {lease.shard.id}: {records} records"
    job.progress(0, lease, 8)
    assert doing() == f"training shard {lease.shard.id}: 8 of {records}"
