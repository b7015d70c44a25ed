"""What a cluster does to processes, scripted on the cluster in memory, and what becomes of the
job.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import ExitCode
from elasticdl.master.core.commands import FinishJob
from tests.contract.fake_job import SOURCE, FakeJob, whole_job
from tests.fake_cluster import (
    DELETED,
    EVICTED,
    NODE_TAINTED,
    OUT_OF_MEMORY,
    PREEMPTED,
    no_image,
    no_program,
)

pytestmark = pytest.mark.contract

W0, W1, W2, W3 = (ProcessName(Role.WORKER, index) for index in range(4))
PS0, PS1 = (ProcessName(Role.PS, index) for index in range(2))
QUOTA = "quota team exhausted: cpu 8 of 8 used, 2 more asked for"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., tuple[FinishJob, FakeJob]]:
    def run(
        scenario: Callable[[FakeJob], Any] | None = None,
        prepare: Callable[[FakeJob], None] | None = None,
        **flags: Any,
    ) -> Any:
        return asyncio.run(whole_job(tmp_path, scenario, prepare, **flags))

    return run


def events(job: FakeJob) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.events_path.read_text().splitlines()]


def causes(job: FakeJob) -> list[str]:
    return [
        event["cause"] for event in events(job) if event["cause"] not in ("", "finished", "drained")
    ]


def whole(job: FakeJob) -> bool:
    total = job.core.receipt().total
    return (total.expected, total.trained, total.lost) == (SOURCE.records, SOURCE.records, 0)


def test_preempted_evicted_deleted_tainted_and_lost_workers_come_back_and_each_cause_is_named(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    async def scenario(job: FakeJob) -> None:
        for facts in (PREEMPTED, EVICTED, DELETED, NODE_TAINTED):
            before = job.trained
            await job.until("some progress", progressed(before, workers=2))
            job.cluster.exit(job.workers[0], facts)
        await job.until("two workers", lambda job: len(job.workers) == 2)
        lost = job.workers[0]
        job.cluster.lose_node(lost)
        job._lives[lost].cancel()
        await job.until(
            "it is missed", lambda job: any(e["cause"] == "silent" for e in events(job))
        )
        job.cluster.notice_loss(lost)
        await job.until(
            "it is explained", lambda job: any(e["cause"] == "node_lost" for e in events(job))
        )

    finish, job = play(scenario, pace_s=0.03, max_relaunches=0)
    assert finish.exit_code is ExitCode.DONE, finish
    assert causes(job) == ["preempted", "evicted", "deleted", "node_drained", "silent", "node_lost"]
    assert whole(job)


def test_a_quota_for_half_of_the_processes_is_one_wait_and_the_job_runs_with_what_it_has(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    async def scenario(job: FakeJob) -> None:
        await job.until("training with two", lambda job: job.trained > 64)
        assert len(job.workers) == 2
        job.cluster.quota(None)
        await job.until("the others came", lambda job: len(job.workers) == 4)

    finish, job = play(
        scenario, lambda job: job.cluster.quota(4, QUOTA), num_workers="1:4", pace_s=0.1
    )
    assert finish.exit_code is ExitCode.DONE and whole(job)
    waits = [event["text"] for event in events(job) if event["kind"] == "wait"]
    assert waits[0] == f"2 of 4 workers scheduled; {QUOTA}"
    assert waits[-1] == "all processes are scheduled" and len(waits) <= 4


def test_a_server_that_no_node_has_room_for_is_a_named_wait_that_ends_when_there_is(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    async def scenario(job: FakeJob) -> None:
        await job.until(
            "the wait is told",
            lambda job: any("parameter servers scheduled" in e["text"] for e in events(job)),
        )
        assert job.trained == 0
        job.cluster.place(PS1)

    words = "no node has room for it: 0/3 nodes are available: 3 Insufficient memory"
    finish, job = play(scenario, lambda job: job.cluster.hold(PS1, words))
    assert finish.exit_code is ExitCode.DONE and whole(job)
    assert f"1 of 2 parameter servers scheduled; {words}" in [
        event["text"] for event in events(job)
    ]


def test_an_image_that_cannot_be_had_fails_the_job_with_the_registrys_words(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    words = "image r/zoo:1 cannot be pulled (ErrImagePull): 401 Unauthorized"
    finish, job = play(None, lambda job: job.cluster.doom(no_image(words), times=9))
    assert (finish.exit_code, words in finish.message) == (ExitCode.JOB_FAILED, True)
    assert "--image-pull-secrets" in finish.hint
    assert set(causes(job)) == {"image_unavailable"}


def test_a_command_that_is_not_there_fails_the_job_with_the_runtimes_words(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    def prepare(job: FakeJob) -> None:
        for index in range(9):
            job.cluster.doom(
                no_program('exec: "trian": not found'), name=ProcessName(Role.WORKER, index)
            )

    finish, job = play(None, prepare)
    assert finish.exit_code is ExitCode.JOB_FAILED and 'exec: "trian": not found' in finish.message
    assert set(causes(job)) == {"start_error"}


def test_an_image_that_is_away_for_a_while_costs_only_pauses_where_workers_ran_before(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    async def scenario(job: FakeJob) -> None:
        await job.until("some progress", lambda job: job.trained > 0)
        job.cluster.preempt(job.workers[0])

    def prepare(job: FakeJob) -> None:
        job.cluster.doom(no_image("the registry answered 503"), name=W2)
        job.cluster.doom(no_program("the runtime was busy"), name=W3)

    finish, job = play(scenario, prepare, pace_s=0.05)
    assert finish.exit_code is ExitCode.DONE and whole(job)
    assert causes(job) == ["preempted", "image_unavailable", "start_error"]


def test_rights_that_are_missing_for_ever_exit_with_3_and_name_verb_and_resource(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    words = (
        "service account elasticdl of namespace ns may not create pods in namespace ns;"
        " docker/rbac.yaml grants the rights"
    )
    finish, _ = play(None, lambda job: job.cluster.refuse(words, retry=False, times=99))
    assert (finish.exit_code, words in finish.message) == (ExitCode.CLUSTER_REFUSED, True)


def test_a_worker_out_of_memory_comes_back_with_more_and_the_job_ends_whole(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    async def scenario(job: FakeJob) -> None:
        for _ in range(2):
            before = job.trained
            await job.until("some progress", progressed(before, workers=1))
            job.cluster.exit(job.workers[0], OUT_OF_MEMORY)

    flags = {
        "image_name": "zoo:1",
        "worker_resource_limit": "memory=1Gi",
        "oom_memory_limit": "2Gi",
        "num_workers": 1,
    }
    finish, job = play(scenario, pace_s=0.03, **flags)
    assert finish.exit_code is ExitCode.DONE and whole(job)
    given = [
        spec.memory_bytes for name, spec in job.cluster.specs.items() if name.role is Role.WORKER
    ]
    assert given == [None, 3 * 2**29, 2**31]
    ends = [
        event["text"]
        for event in events(job)
        if event["cause"] == "out_of_memory" and "ended" in event["text"]
    ]
    assert "worker-0 ended: out of memory at 1.0 of 1.0 GiB; " in ends[0]


def test_a_shard_that_takes_too_much_memory_of_every_worker_is_parked_and_names_limit_and_peak(
    play: Callable[..., tuple[FinishJob, FakeJob]],
) -> None:
    async def scenario(job: FakeJob) -> None:
        for index in range(3):
            worker = ProcessName(Role.WORKER, index)
            await job.until(f"{worker} has work", works_on_the_first_shard(worker))
            job.cluster.exit(worker, OUT_OF_MEMORY)

    flags = {
        "image_name": "zoo:1",
        "worker_resource_limit": "memory=1Gi",
        "oom_memory_limit": "1Gi",
        "num_workers": 1,
    }
    finish, _ = play(scenario, pace_s=0.5, shuffle="none", **flags)
    assert finish.exit_code is ExitCode.JOB_FAILED
    assert finish.message.startswith(
        "worker-2 out of memory at 1.0 of 1.0 GiB, 3 times on shard 0; "
    )
    assert "--worker-resource-limit" in finish.hint


def progressed(before: int, workers: int) -> Callable[[FakeJob], bool]:
    """More than `before` records are trained, and so many workers are there."""
    return lambda job: job.trained > before and len(job.workers) == workers


def works_on_the_first_shard(worker: ProcessName) -> Callable[[FakeJob], bool]:
    return lambda job: "shard 0" in shard_of(job, worker)


def shard_of(job: FakeJob, worker: ProcessName) -> str:
    found = next(
        (process.shard for process in job.core.status().processes if process.name == str(worker)),
        None,
    )
    return found or ""
