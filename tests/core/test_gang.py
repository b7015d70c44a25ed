"""A gang: which pods are in it, and what the job does so that none of them waits for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.job_objects import pod
from elasticdl.cluster.kubernetes.planning import job_object, job_pod_group, pod_plan
from elasticdl.cluster.kubernetes.plans import Gang, GangApi, Json, Owner
from elasticdl.cluster.kubernetes.submitted_job import spec_of
from elasticdl.errors import ExitCode, SpecError
from elasticdl.flag_values import WorkerRange
from elasticdl.job import JobSpec
from elasticdl.job_args import read_args
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.scale_override import as_scaled, keep_scale
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from tests.core.conftest import Bench

pytestmark = pytest.mark.core
OWNER = Owner("team-a", "j", "uid")
KUBERNETES = Gang(GangApi.KUBERNETES, "v1beta1")
NEEDED = {"model_def": "m", "training_data": "t", "image_name": "i", "job_name": "j", "gang": True}
GUARANTEED, RUNG = "elasticdl-guaranteed", "elasticdl-rung-5"


def job(**flags: Any) -> JobSpec:
    given = {"num_workers": "4:9", "num_ps_pods": 2, "priority_ladder": "on"}
    return JobSpec.from_flags(Action.TRAIN, {**NEEDED, **given, **flags})


def made(
    spec: JobSpec, role: Role, place: int, gang: Gang = KUBERNETES, *, in_gang: bool = True
) -> Json:
    plan = pod_plan(spec, role, place, gang, in_gang=in_gang)
    return pod(OWNER, plan, ProcessSpec(ProcessName(role, 7), ("x",)))


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ({}, 6),
        ({"num_workers": "4"}, 6),
        ({"num_workers": "1:9", "num_ps_pods": 1}, 2),
        ({"distribution_strategy": "AllreduceStrategy", "num_ps_pods": 0}, 4),
        ({"distribution_strategy": "AllreduceStrategy", "num_ps_pods": 0, "num_workers": 9}, 9),
    ],
)
def test_the_group_waits_for_exactly_the_processes_that_are_in_it(
    flags: dict[str, Any], size: int
) -> None:
    given = {**NEEDED, "num_workers": "4:9", "num_ps_pods": 2, **flags}
    group = job_pod_group(job(**flags), OWNER, KUBERNETES)
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == size
    together, alone = Bench(**given), Bench(**{**given, "gang": False})
    assert sum(one.in_gang for one in together.of(c.StartProcess, together.start())) == size
    assert not any(one.in_gang for one in alone.of(c.StartProcess, alone.start()))


@pytest.mark.parametrize(
    ("api", "path", "name"),
    [
        (GangApi.KUBERNETES, ("spec", "schedulingGroup"), {"podGroupName": "j"}),
        (GangApi.VOLCANO, ("metadata", "annotations", "scheduling.k8s.io/group-name"), "j"),
        (GangApi.SCHEDULER_PLUGINS, ("metadata", "labels", "scheduling.x-k8s.io/pod-group"), "j"),
    ],
)
def test_a_pod_of_the_gang_names_its_group_and_others_do_not(
    api: GangApi, path: tuple[str, ...], name: object
) -> None:
    gang = Gang(api, "v1")
    group = job_pod_group(job(), OWNER, gang)
    assert (group["apiVersion"], group["kind"]) == (f"{api}/v1", "PodGroup")
    assert group["metadata"]["name"] == "j"

    def named(one: Any) -> object:
        for key in path:
            one = one.get(key, {})
        return one

    server, worker = made(job(), Role.PS, 1, gang), made(job(), Role.WORKER, 4, gang)
    extra = made(job(), Role.WORKER, 5, gang, in_gang=False)
    assert (named(server), named(worker), named(extra)) == (name, name, {})
    schedulers = {one["spec"].get("schedulerName") for one in (server, worker, extra)}
    assert schedulers == ({"volcano"} if api is GangApi.VOLCANO else {None})
    assert made(job(scheduler_name="s"), Role.PS, 1, gang)["spec"]["schedulerName"] == "s"


def test_all_of_a_gang_and_its_group_have_one_priority() -> None:
    for spec in (job(), job(num_workers=4)):
        group = job_pod_group(spec, OWNER, KUBERNETES)
        pods = [made(spec, Role.PS, 1), *(made(spec, Role.WORKER, place) for place in (1, 4, 5))]
        assert {pod["spec"]["priorityClassName"] for pod in pods} == {GUARANTEED}
        assert group["spec"]["priorityClassName"] == GUARANTEED
    extra = made(job(), Role.WORKER, 5, in_gang=False)
    assert extra["spec"]["priorityClassName"] == RUNG
    without = job_pod_group(job(priority_ladder="off"), OWNER, KUBERNETES)
    assert "priorityClassName" not in without["spec"]


def test_a_gang_is_of_a_training_job_on_a_cluster_and_travels_with_it() -> None:
    assert spec_of(job_object(job(), "team-a")).gang_workers == 4
    with pytest.raises(SpecError, match="--gang without --image-name"):
        job(image_name="", model_zoo="z", priority_ladder="auto")
    with pytest.raises(SpecError, match="evaluate` does not accept --gang"):
        read_args(("evaluate", "--gang"))


def gang_bench() -> Bench:
    """A job of one server and two to four workers, of which two are in the gang."""
    job = Bench(num_workers="2:4", image_name="i", gang=True, num_ps_pods=1)
    assert gang_of(job, job.start()) == {"worker-0": True, "worker-1": True}
    return job


def gang_of(job: Bench, commands: list[c.Command]) -> dict[str, bool]:
    """The workers that were ordered, and whether each is in the gang."""
    ordered = job.of(c.StartProcess, commands)
    return {str(one.name): one.in_gang for one in ordered if one.name.role is Role.WORKER}


def run(job: Bench, *indices: int) -> dict[str, bool]:
    """These workers have nodes; returns what is ordered then."""
    commands: list[c.Command] = []
    for index in indices:
        commands += job.put(e.ProcessSeen(0, job.worker(index), True))
    return gang_of(job, commands)


def test_workers_beyond_the_gang_come_when_it_runs() -> None:
    """They would take the room that it waits for, and could do nothing there."""
    job = gang_bench()
    assert run(job, 0) == {} and gang_of(job, job.tick(60)) == {}
    assert run(job, 1) == {"worker-2": False, "worker-3": False}


def test_a_lost_worker_of_the_gang_is_replaced_in_the_gang() -> None:
    job = gang_bench()
    run(job, 0, 1, 2, 3)
    assert gang_of(job, job.die(job.worker(0))) == {"worker-4": True}
    # Until the gang is whole again, none comes in place of another.
    assert gang_of(job, job.die(job.worker(2))) == {}
    assert run(job, 4) == {"worker-5": False}


def test_a_gang_that_is_lost_as_a_whole_is_ordered_as_a_whole() -> None:
    """Whatever there is beside it, and however little work is left."""
    job = gang_bench()
    run(job, 0, 1, 2, 3)
    lost = [gang_of(job, job.die(job.worker(index))) for index in (0, 1)]
    assert [list(one.values()) for one in lost] == [[True], [True]]


@pytest.mark.parametrize("gang", [False, True])
def test_a_gang_is_whole_however_little_work_there_is(gang: bool) -> None:
    job = Bench.running(2, num_workers=2, image_name="i", gang=gang)
    for _ in range(3):
        job.finish(0, job.lease(0))
    job.lease(0)
    commands = job.die(job.worker(1))
    assert len(job.of(c.StartProcess, commands)) == int(gang)


def test_a_gang_that_can_never_be_whole_fails_the_job() -> None:
    job = gang_bench()
    run(job, 0, 1)
    job.put(e.CreateFailed(0, job.worker(3), "forbidden", retry=False))
    assert job.state.status().exit_code is None and job.state.status().scale.high == 3
    assert gang_of(job, job.die(job.worker(0))) == {"worker-4": True}
    job.put(e.CreateFailed(0, job.worker(4), "forbidden", retry=False))
    assert job.state.status().exit_code == ExitCode.CLUSTER_REFUSED


def test_a_gang_is_not_scaled_below_its_size() -> None:
    job = gang_bench()
    job.put(e.ScaleRequested(0, 1, 3))
    assert job.said("workers to 1:3: with --gang the job has at least 2 workers")
    assert (job.state.status().scale.low, job.state.status().scale.high) == (2, 4)
    job.put(e.ScaleRequested(0, 2, 2))
    assert job.state.status().scale.high == 2


def test_those_of_a_gang_are_the_last_to_go_when_a_job_is_scaled_down() -> None:
    """Without them, a server that comes back would wait for a gang that is never whole."""
    job = gang_bench()
    run(job, 0, 1, 2, 3)
    assert gang_of(job, job.die(job.worker(0))) == {"worker-4": True}
    commands = job.put(e.ScaleRequested(0, 2, 2))
    stopped = [str(command.name) for command in commands if isinstance(command, c.StopProcess)]
    assert sorted(stopped) == ["worker-2", "worker-3"]


def test_a_gang_does_not_resume_with_the_fewer_workers_of_a_run_without_one(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    keep_scale(directory, WorkerRange(low=4, high=9), 2, 2)
    assert as_scaled(job(gang=False), directory, anew=False)[0].cluster.num_workers.high == 2
    assert as_scaled(job(), directory, anew=False) == (job(), "")
