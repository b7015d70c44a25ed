"""Whatever ends a process or keeps it from starting: one cause in words, a budget of its own, and a
name for each wait.
"""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus, Role
from elasticdl.errors import ExitCode
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.processes.budgets import Budgets
from elasticdl.master.core.processes.causes import Cause, Verdict, verdict_of
from elasticdl.master.core.processes.memory_limits import MemoryLimits, MemoryPolicy
from elasticdl.shard import Source
from tests.core.conftest import Bench
from tests.fake_cluster import (
    DELETED,
    EVICTED,
    NODE_LOST,
    NODE_TAINTED,
    OUT_OF_MEMORY,
    PREEMPTED,
    no_image,
    no_program,
)
from tests.present import present

pytestmark = pytest.mark.core

GIB = 2**30
QUOTA = "quota team exhausted: cpu 8 of 8 used, 2 more asked for"
ON_KUBERNETES: dict[str, Any] = {
    "image_name": "zoo:1",
    "worker_resource_limit": "memory=1Gi",
    "ps_resource_limit": "memory=512Mi",
    "oom_memory_limit": "2Gi",
}


def started(job: Bench, commands: list[Any] | None = None) -> list[c.StartProcess]:
    return job.of(c.StartProcess, commands)


def names(job: Bench, commands: list[Any] | None = None) -> list[str]:
    return [str(command.name) for command in started(job, commands)]


def told(job: Bench, kind: str = "wait") -> list[str]:
    return [command.text for command in job.of(c.Announce) if command.kind == kind]


def cause_of(job: Bench, name: str) -> str | None:
    return next(process.cause for process in job.state.status().processes if process.name == name)


# words

_AT = "2026-11-23 09:24:16,700"
LOGGED = f"""{_AT} E elasticdl.worker.lifecycle: UserError: zoo/m.py:3: loss raised ValueError: no
  zoo/m.py:3  raise ValueError("no")
{_AT} I elasticdl.worker.process.os_process: SIGTERM: finishing the step
"""
"""The log of a worker that failed and was then asked to leave."""


STILL = (
    "step 7\n2026-11-27 10:00:00,000 E elasticdl.worker.process.os_process: still running after"
    " 30 s (draining: SIGTERM)\n"
)


@pytest.mark.parametrize(
    ("status", "cause", "words"),
    [
        (PREEMPTED, Cause.PREEMPTED, "preempted for a pod of higher priority"),
        (EVICTED, Cause.EVICTED, "evicted by request"),
        (NODE_TAINTED, Cause.NODE_DRAINED, "its node was tainted"),
        (NODE_LOST, Cause.NODE_LOST, "its node stopped answering"),
        (DELETED, Cause.DELETED, "deleted by someone else"),
        (
            ExitStatus(exit_code=66, reason="Deleted"),
            Cause.DELETED,
            "deleted by someone else; it returned its shards first",
        ),
        (
            ExitStatus(exit_code=66, conditions=PREEMPTED.conditions),
            Cause.PREEMPTED,
            "it returned its shards first",
        ),
        (
            ExitStatus(exit_code=68, conditions=PREEMPTED.conditions, log_tail=STILL),
            Cause.PREEMPTED,
            "; it ended by force: still running after 30 s (draining: SIGTERM)",
        ),
        (
            ExitStatus(exit_code=68, log_tail=STILL, asked=True),
            Cause.HUNG,
            "ended by force: still running after 30 s (draining: SIGTERM)",
        ),
        (
            no_image("image zoo:1 cannot be pulled (ErrImagePull): 401"),
            Cause.IMAGE,
            "zoo:1 cannot be pulled (ErrImagePull): 401",
        ),
        (
            no_program('exec: "trian": not found'),
            Cause.START_ERROR,
            'could not be started: exec: "trian": not found',
        ),
        (ExitStatus(reason="Terminated"), Cause.NODE_DRAINED, "shut down"),
        (ExitStatus(reason="Odd", log_tail="so it was"), Cause.INFRASTRUCTURE, "Odd: so it was"),
        (ExitStatus(reason="Deleted", asked=True), Cause.DRAINED, "ended on request"),
        (
            ExitStatus(signal=15, reason="Evicted", log_tail="The node was low on memory\nstep 7"),
            Cause.EVICTED,
            ": The node was low",
        ),
    ],
)
def test_each_fate_has_its_cause_and_words(status: ExitStatus, cause: Cause, words: str) -> None:
    found = verdict_of(status)
    assert (found.cause, found.blames_work) == (cause, False)
    assert words in found.text
    assert "step 7" not in found.text


@pytest.mark.parametrize(
    ("limit", "peak", "words"),
    [
        (GIB, None, "out of memory at 1.0 of 1.0 GiB"),
        (GIB, GIB - 1000, "out of memory at 1.0 of 1.0 GiB"),
        (3 * GIB // 2, GIB // 2, "out of memory at 1.5 of 1.5 GiB (its last report said 512 MiB)"),
        (None, GIB, "out of memory; its last report said 1.0 GiB"),
        (None, None, "out of memory"),
    ],
)
def test_an_end_out_of_memory_names_limit_and_peak(
    limit: int | None, peak: int | None, words: str
) -> None:
    status = ExitStatus(signal=9, reason="OOMKilled", memory_peak_bytes=peak)
    assert verdict_of(status, limit_bytes=limit).text == words


# budgets


@pytest.mark.parametrize(
    "status",
    [PREEMPTED, EVICTED, NODE_TAINTED, NODE_LOST, DELETED],
    ids=lambda status: verdict_of(status).cause,
)
def test_what_a_cluster_does_is_borne_for_ever_and_the_worker_comes_back(
    status: ExitStatus,
) -> None:
    job = Bench.running()
    for index in range(100):
        assert names(job, job.die(job.worker(index), status)) == [f"worker-{index + 1}"]
        job.attach(job.worker(index + 1))
    assert job.state.status().exit_code is None
    assert cause_of(job, "worker-7") == verdict_of(status).cause


@pytest.mark.parametrize(
    "status", [NODE_LOST, PREEMPTED, EVICTED, ExitStatus(reason="NodeLost", asked=True)]
)
def test_silence_is_explained_by_the_platform_when_it_tells_and_costs_nothing_then(
    status: ExitStatus,
) -> None:
    job = Bench.running()
    for index in range(60):
        job.put(e.ProcessSilent(0, job.worker(index), 10.0))
        assert cause_of(job, f"worker-{index}") == "silent"
        job.die(job.worker(index), status)
        assert cause_of(job, f"worker-{index}") == verdict_of(status).cause
        job.attach(job.worker(index + 1))
    assert job.said("cause of the silence of worker-7: ")
    assert job.state.status().exit_code is None


def test_an_end_by_force_does_not_explain_an_earlier_silence() -> None:
    job = Bench.running(2, num_workers=2)
    job.put(e.ScaleRequested(0, 1, 1))
    job.put(e.ProcessSilent(0, job.worker(1), 10.0))
    job.die(job.worker(1), ExitStatus(exit_code=68, log_tail=STILL, asked=True))
    assert cause_of(job, "worker-1") == "silent"
    assert not job.said("cause of the silence")


def test_one_that_fell_silent_for_lack_of_memory_is_followed_by_one_with_more() -> None:
    job = Bench.running(num_workers=1, **ON_KUBERNETES)
    job.put(e.ProcessSilent(0, job.worker(0), 10.0))
    job.die(job.worker(0), OUT_OF_MEMORY)
    (start,) = started(job, job.die(job.worker(1)))
    assert start.memory_bytes == 3 * GIB // 2


def test_an_image_that_no_pod_of_that_role_had_fails_the_job_with_the_registrys_words() -> None:
    job = Bench(num_workers=2)
    job.start()
    job.put(
        e.ProcessSeen(0, job.worker(0), running=False, waiting_for="image zoo:1 cannot be pulled")
    )
    job.die(
        job.worker(0), no_image("image zoo:1 cannot be pulled (ErrImagePull): 401 Unauthorized")
    )
    assert job.state.status().exit_code == ExitCode.JOB_FAILED
    assert (
        job.state.status().outcome
        == "worker-0: image zoo:1 cannot be pulled (ErrImagePull): 401 Unauthorized"
    )


def test_a_program_that_never_started_fails_the_job_at_its_third_try() -> None:
    job = Bench(num_workers=1)
    job.start()
    job.attach(job.ps(0))
    for index in range(2):
        job.die(job.worker(index), no_program('exec: "trian": not found'))
        assert job.state.status().exit_code is None
    job.die(job.worker(2), no_program('exec: "trian": not found'))
    assert job.state.status().outcome == 'worker-2: could not be started: exec: "trian": not found'


def test_what_no_other_process_could_do_either_is_not_tried_again() -> None:
    job = Bench(num_workers=2)
    job.start()
    job.attach(job.ps(0))
    status = ExitStatus(exit_code=70, log_tail="E lifecycle: CannotRun: Horovod is missing")
    job.die(job.worker(0), status)
    assert job.state.status().outcome == (
        "worker-0: cannot run: E lifecycle: CannotRun: Horovod is missing"
    )


@pytest.mark.parametrize(
    "status", [no_image("registry away"), no_program("runtime busy")], ids=["image", "start"]
)
def test_where_one_ran_before_starts_are_tried_again_with_growing_pauses(
    status: ExitStatus,
) -> None:
    job = Bench.running(2, num_workers=2)
    delays = []
    for index in range(1, 9):
        (start,) = started(job, job.die(job.worker(index), status))
        delays.append(start.delay_s)
    assert delays == sorted(delays) and delays[-1] == 30.0
    assert job.state.status().exit_code is None
    lease = job.lease(0)
    job.finish(0, lease)
    (start,) = started(job, job.die(job.worker(9), status))
    assert start.delay_s <= 0.5


def test_starts_that_never_work_again_end_the_job_at_last() -> None:
    budgets, end = Budgets(0), Verdict(Cause.IMAGE, "registry away")
    reasons = [budgets.died("worker-1", end, answered=False, role_ran=True) for _ in range(50)]
    assert not any(reasons[:-1]) and "registry away" in present(reasons[-1])


# memory


def test_memory_grows_by_half_up_to_the_limit_and_never_shrinks() -> None:
    memory = MemoryLimits({Role.WORKER: MemoryPolicy(100, 200)})
    assert (memory.of(Role.WORKER), memory.raised(Role.WORKER), memory.of(Role.PS)) == (
        100,
        None,
        None,
    )
    assert memory.answer(Role.WORKER, 100) == 150
    assert memory.answer(Role.WORKER, 150) == 200
    assert memory.answer(Role.WORKER, 100) == 200, (
        "one that was started before gets what the others get"
    )
    assert memory.answer(Role.WORKER, 200) is None
    assert memory.answer(Role.PS, 100) is None and memory.answer(Role.WORKER, None) is None
    assert memory.raised(Role.WORKER) == 200


def test_a_worker_out_of_memory_gets_more_up_to_a_limit_that_the_failure_names() -> None:
    job = Bench.running(num_workers=1, **ON_KUBERNETES)
    assert [start.memory_bytes for start in started(job)] == [None, None]
    given = []
    for index in range(4):
        lease = job.lease(index)
        (start,) = started(job, job.die(job.worker(index), OUT_OF_MEMORY))
        given.append(start.memory_bytes)
        job.fenced(index, None)
        job.attach(job.worker(index + 1))
    assert given == [3 * GIB // 2, 2 * GIB, 2 * GIB, 2 * GIB]
    assert job.said("the next worker gets 1.5 GiB (--oom-memory-limit 2.0 GiB)")
    assert job.state.status().exit_code is None
    job.lease(4)
    job.die(job.worker(4), OUT_OF_MEMORY)
    job.fenced(4, None)
    status = job.state.status()
    assert status.exit_code == ExitCode.JOB_FAILED
    assert present(status.outcome).startswith(
        f"worker-4 out of memory at 2.0 of 2.0 GiB, 3 times on shard {present(lease.shard).id}; "
    )
    assert "--worker-resource-limit" in present(job.state._context.outcome).hint


def test_a_shard_that_is_too_big_for_every_worker_is_parked_like_any_other() -> None:
    job = Bench.running(
        num_workers=1, max_failed_shards=1, **ON_KUBERNETES | {"oom_memory_limit": "1Gi"}
    )
    for index in range(3):
        job.lease(index)
        job.die(job.worker(index), OUT_OF_MEMORY)
        job.fenced(index, None)
        job.attach(job.worker(index + 1))
    assert job.state.status().exit_code is None
    assert "attempt 1: worker-0: out of memory at 1.0 of 1.0 GiB" in job.state.status().parked[0]
    job.train_all(3)


def test_a_server_out_of_memory_at_its_limit_fails_the_job_at_the_fourth_time() -> None:
    job = Bench.running(
        **ON_KUBERNETES | {"oom_memory_limit": "512Mi", "worker_resource_limit": "memory=256Mi"}
    )
    for incarnation in range(4):
        assert job.state.status().exit_code is None
        job.die(job.ps(0, incarnation), OUT_OF_MEMORY)
        job.attach(job.ps(0, incarnation + 1))
    assert (
        job.state.status().outcome
        == "ps-0.3 out of memory at 512 of 512 MiB; this is the 4th such end"
    )


def test_more_memory_is_ordered_again_with_a_start_that_was_refused() -> None:
    job = Bench.running(num_workers=1, **ON_KUBERNETES)
    job.die(job.worker(0), OUT_OF_MEMORY)
    job.put(e.CreateFailed(0, job.worker(1), QUOTA, retry=True))
    (start,) = started(job, job.tick(1.1))
    assert start == c.StartProcess(job.worker(1), 0.0, 3 * GIB // 2)


# waits


def four_workers(placed: int = 2, **flags: Any) -> Bench:
    """A job with room for only some of its four workers."""
    job = Bench.running(placed, **{"num_workers": "1:4"} | flags)
    for index in range(placed, 4):
        job.put(e.CreateFailed(0, job.worker(index), QUOTA, retry=True))
    return job


def test_a_quota_is_one_named_wait_of_the_job_and_training_continues() -> None:
    job = four_workers()
    assert job.state.status().waiting[0] == f"2 of 4 workers scheduled; {QUOTA}"
    job.tick(1)
    for _ in range(50):
        job.put(e.CreateFailed(0, job.worker(2), QUOTA, retry=True))
        job.tick(1)
    assert told(job) == [f"2 of 4 workers scheduled; {QUOTA}"]
    assert job.lease(0) and job.lease(1)
    assert job.state.status().exit_code is None


def test_the_wait_is_reported_when_it_changes_and_when_it_is_over() -> None:
    job = four_workers()
    job.tick(1)
    job.put(
        e.ProcessSeen(
            0,
            job.worker(2),
            running=False,
            waiting_for="no node has room for it: 0/3 nodes are available",
        )
    )
    job.put(e.ProcessSeen(0, job.worker(3), running=True))
    job.tick(6)
    assert len(told(job)) == 1, "not more often than anybody can read"
    job.tick(5)
    job.put(e.ProcessSeen(0, job.worker(2), running=True))
    job.tick(1)
    assert told(job)[1:] == [
        "3 of 4 workers scheduled; no node has room for it: 0/3 nodes are available",
        "all processes are scheduled",
    ]


def test_being_placed_takes_a_moment_that_is_no_wait() -> None:
    job = Bench(num_workers=2)
    job.start()
    job.put(e.ProcessSeen(0, job.worker(0), running=False, waiting_for="node n1 is preparing it"))
    job.tick(4)
    assert told(job) == []
    job.tick(2)
    assert told(job) == [
        "0 of 1 parameter servers scheduled; it has not started yet; "
        "0 of 2 workers scheduled; node n1 is preparing it (and 1 other reason)"
    ]


def test_fewer_workers_than_wanted_at_least_is_said_and_still_trains() -> None:
    job = four_workers(placed=1, num_workers="3:4")
    assert (
        job.state.status().waiting[0]
        == f"1 of 4 workers scheduled, below the minimum of 3; {QUOTA}"
    )
    assert job.lease(0)
    job.tick(100_000)
    assert job.state.status().exit_code is None


def test_a_server_without_a_place_is_named_to_those_who_wait_for_it() -> None:
    job = Bench(num_ps_pods=2)
    job.start()
    job.attach(job.ps(0), job.worker(0))
    job.put(
        e.ProcessSeen(
            0, job.ps(1), running=False, waiting_for="no node has room for it: Insufficient memory"
        )
    )
    job.tick(6)
    assert (
        job.refused()
        == "waiting for parameter servers: ps-1 is pending: no node has room for it: Insufficient"
        " memory"
    )
    assert told(job) == [
        "1 of 2 parameter servers scheduled; no node has room for it: Insufficient memory"
    ]


def test_refused_processes_ask_again_at_different_times_and_at_most_every_30_s() -> None:
    job = Bench(num_workers=20)
    job.start()
    pauses: dict[str, list[float]] = {}
    asked = dict.fromkeys((job.worker(index) for index in range(20)), 0.0)
    for name in asked:
        job.put(e.CreateFailed(0, name, QUOTA, retry=True))
    while job.t < 200:
        for start in started(job, job.tick(0.25)):
            pauses.setdefault(str(start.name), []).append(job.t - asked[start.name])
            asked[start.name] = job.t
            job.put(e.CreateFailed(0, start.name, QUOTA, retry=True))
    assert all(max(found) <= 30.25 for found in pauses.values())
    assert all(found[-1] >= 24.0 for found in pauses.values())
    assert len({found[-2] for found in pauses.values()}) > 5
    assert [text for text in told(job) if QUOTA in text][-1].endswith(
        f"0 of 20 workers scheduled; {QUOTA}"
    )
    assert len(told(job)) <= 2, "once more when the servers are waited for, too"


def test_a_forbidden_creation_names_verb_and_resource_and_exits_with_3() -> None:
    job = Bench()
    job.start()
    words = "service account elasticdl of namespace ns may not create pods in namespace ns"
    job.put(e.CreateFailed(0, job.ps(0), words, retry=False))
    assert (job.state.status().exit_code, words in present(job.state.status().outcome)) == (
        ExitCode.CLUSTER_REFUSED,
        True,
    )


# coming up


def limited(starting: int, **flags: Any) -> Bench:
    from elasticdl.master.core.state import JobState

    job = Bench(**flags)
    job.state = JobState(job.spec, Limits(starting=starting))
    return job


def test_workers_come_up_a_few_at_a_time_where_the_place_wants_it_so_and_it_is_reported() -> None:
    job = limited(2, num_workers=6, records_per_task=8)
    job.start()
    assert names(job) == ["ps-0", "worker-0", "worker-1"]
    assert "starting workers 2 at a time; 4 queued" in job.state.status().waiting
    job.attach(job.ps(0))
    for index in (0, 1):
        job.put(e.ProcessAttached(0, job.worker(index), starting=True))
        job.put(e.LeaseRequested(0, job.worker(index)))
    assert names(job)[3:] == [], "they read ahead while they still exchange weights"
    job.put(e.StartWentOn(0, job.worker(1), ""))
    assert names(job)[3:] == ["worker-2"]
    job.put(e.StartWentOn(0, job.worker(0), ""))
    assert names(job)[3:] == ["worker-2", "worker-3"]
    job.put(e.ScaleRequested(0, 1, 2))
    assert "queued" not in str(job.state.status().waiting)


@pytest.mark.parametrize("fewest", [1, 3])
def test_on_a_ring_one_that_is_ready_has_come_up_whoever_asks_for_leases(fewest: int) -> None:
    """Only the first member of a ring asks, and none does before there is a ring."""
    job = limited(2, num_workers=f"{fewest}:3", distribution_strategy="AllreduceStrategy")
    job.start()
    for index in (0, 1):
        job.put(e.ProcessAttached(0, job.worker(index), starting=True))
    assert names(job) == ["worker-0", "worker-1"], "attached, but the step is not compiled yet"
    job.put(e.RingReported(0, job.worker(1), True, 0, 0, False, ""))
    assert names(job) == ["worker-0", "worker-1", "worker-2"]
    assert "queued" not in str(job.state.status().waiting)


def test_one_that_does_not_come_up_does_not_hold_the_others_up_for_ever() -> None:
    job = limited(1, num_workers=2)
    job.start()
    job.attach(job.ps(0))
    job.put(e.ProcessAttached(0, job.worker(0), starting=True))
    assert names(job) == ["ps-0", "worker-0"]
    assert names(job, job.tick(119)) == []
    assert names(job, job.tick(2)) == ["worker-1"]


def test_without_a_limit_all_come_at_once() -> None:
    job = Bench(num_workers=500)
    assert len(names(job, job.start(training=(Source("a", 64_000),)))) == 501


def test_what_a_process_logged_after_its_error_is_no_cause() -> None:
    told = verdict_of(ExitStatus(exit_code=64, log_tail=LOGGED))
    assert told.text == "user error: UserError: zoo/m.py:3: loss raised ValueError: no"
    raised = f"{_AT} E ps: Traceback (most recent call last):\n  f()\nKeyError: 1\n"
    assert verdict_of(ExitStatus(exit_code=64, log_tail=raised)).text == "user error: KeyError: 1"
