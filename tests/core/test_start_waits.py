"""Every wait of a start has a name, and a bound or a reason to have none.

The phase `starting` of the core is over with its first event, because the data was counted before:
the preflight has its own bounds. What a start waits for after that is where each process is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import ExitCode
from elasticdl.formatting import START_PARTS
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.processes.table import Life
from elasticdl.shard import Source
from tests.core.conftest import Bench

pytestmark = pytest.mark.core

NAMED_S = 30.0
LONG_S = 2 * 3600.0
MOST_TRIES = 30

Scene = Callable[[object, ProcessName], None]


def requested(job: Any, name: ProcessName) -> None:
    """The cluster never shows it."""


def refused(job: Any, name: ProcessName) -> None:
    job.put(e.CreateFailed(0, name, "quota team exhausted", retry=True))


def pending(job: Any, name: ProcessName) -> None:
    job.put(e.ProcessSeen(0, name, running=False, waiting_for="pulling the image"))


def starting(job: Any, name: ProcessName) -> None:
    job.put(e.ProcessSeen(0, name, running=True, where="node-1"))


def at_part(part: str) -> Scene:
    def scene(job: Any, name: ProcessName) -> None:
        starting(job, name)
        job.put(e.ProcessAttached(0, name, "c", "b", starting=True))
        job.put(e.StartWentOn(0, name, part))

    return scene


UNBOUNDED = {Life.REQUESTED: requested, Life.REFUSED: refused, Life.PENDING: pending}
"""The cluster has no room, or pulls an image. That may take as long as it likes."""
ATTACH_S = 300.0
PART_S = 1800.0
# A parameter server is ready when it presents itself: it has no parts.
BOUNDED: dict[tuple[Life, str], tuple[Scene, float]] = {
    (Life.STARTING, ""): (starting, ATTACH_S),
    **{(Life.READY, part): (at_part(part), PART_S) for part in START_PARTS},
}


def test_every_place_in_a_start_is_in_this_list() -> None:
    ends = {Life.STOPPING, Life.LOST, Life.ENDED}
    assert set(UNBOUNDED) | {life for life, _ in BOUNDED} | ends == set(Life)


def test_the_phase_of_this_name_is_over_with_the_first_event() -> None:
    job = Bench(num_workers=1)
    job.start()
    assert job.state.status().phase == "working"


def begun(role: str) -> Any:
    """A job in which only one process of that role is not there."""
    job = Bench(num_workers=1)
    job.start()
    if role == "worker":
        job.attach(job.ps(0))
    else:
        job.attach(job.worker(0))
    return job


def pass_time(job: Any, seconds: float, step_s: float = 5.0) -> None:
    for _ in range(round(seconds / step_s)):
        job.tick(step_s)


def newest(job: Any, role: str) -> ProcessName:
    return [one.name for one in job.of(c.StartProcess) if one.name.role == role][-1]


@pytest.mark.parametrize("role", ["worker", "ps"])
@pytest.mark.parametrize("life", UNBOUNDED, ids=str)
def test_what_waits_for_the_cluster_is_named_for_as_long_as_it_takes_and_is_no_stall(
    life: Any, role: str
) -> None:
    job = begun(role)
    UNBOUNDED[life](job, newest(job, role))
    pass_time(job, NAMED_S)
    assert job.state.status().waiting
    pass_time(job, LONG_S, step_s=10.0)
    status = job.state.status()
    assert status.waiting and status.stall is None and job.finished is None


@pytest.mark.parametrize(
    ("place", "role"),
    [*((place, "worker") for place in BOUNDED), ((Life.STARTING, ""), "ps")],
    ids=lambda one: one if isinstance(one, str) else one[1] or str(one[0]),
)
def test_what_a_process_itself_does_is_named_bounded_and_ends_the_job_when_it_never_works(
    place: Any, role: Any
) -> None:
    scene, limit_s = BOUNDED[place]
    job = begun(role)
    for tries in range(MOST_TRIES):
        name = newest(job, role)
        scene(job, name)
        pass_time(job, NAMED_S)
        assert job.state.status().waiting, f"try {tries}"
        pass_time(job, limit_s)
        assert name in [one.name for one in job.of(c.StopProcess)], f"try {tries}"
        job.die(name)
        job.fenced(name.index, None)
        pass_time(job, 120.0)
        if job.finished is not None:
            break
    assert job.finished is not None
    assert job.end.exit_code is (ExitCode.STALLED if place[1] else ExitCode.JOB_FAILED)


def test_workers_that_never_get_ready_end_no_job_in_which_another_one_works() -> None:
    job = Bench(num_workers=2, records_per_task=1_000_000)
    job.up(training=(Source("a", 1_000_000),))
    lease, offset = job.lease(), 0
    scene, limit_s = BOUNDED[Life.READY, "compile"]
    for _ in range(6):
        name = newest(job, "worker")
        scene(job, name)
        for _ in range(round(limit_s / 5.0) + 1):
            offset += 1
            job.progress(0, lease, offset)
            job.tick(5.0)
        assert name in [one.name for one in job.of(c.StopProcess)]
        job.die(name)
        pass_time(job, 50.0)
    assert job.finished is None
