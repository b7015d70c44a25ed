"""The check of model and data in a pod of its own: what it is given, what it waits for, how it
ends. The API is real HTTP; the pod's process is real, too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.cluster.base import Role
from elasticdl.cluster.kubernetes.job_objects import preflight_pod as pod_object
from elasticdl.cluster.kubernetes.planning import CHECK_MARK, SPEC_VARIABLE, pod_plan
from elasticdl.cluster.kubernetes.plans import Json, Owner
from elasticdl.errors import ClusterRefused, ElasticDLError, ExitCode, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.platform.preflight_pod import PreflightPodLimits, preflight_pod
from elasticdl.master.preflight import Preflight, check_streams, follow_check
from elasticdl.master.preflight_watch import PreflightLimits
from tests.contract.small_cluster import serving
from tests.contract.small_kubelet import SmallKubelet

pytestmark = pytest.mark.contract
OWNER = Owner("ns", "iris", "uid-1")
PODS = "/api/v1/namespaces/ns/pods"
QUICK = PreflightPodLimits(quiet_s=0.0, look_s=0.05, again_s=0.05, start_problem_s=0.5)
ANSWER = '{"ok": true, "training": [{"name": "a.csv", "records": 40}]}'
FINE = f"print({CHECK_MARK + ANSWER!r}, flush=True)"
NO_ROOM = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: Insufficient cpu"}
    ],
}


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "not found"}}
    return {"phase": "Pending", "containerStatuses": [{"name": "process", "state": state}]}


def ended(**terminated: Any) -> dict[str, Any]:
    state = {"terminated": terminated}
    return {"phase": "Failed", "containerStatuses": [{"name": "process", "state": state}]}


@pytest.fixture
def cluster() -> Iterator[SmallKubelet]:
    made = SmallKubelet()
    yield made
    made.close()


def checked(
    cluster: SmallKubelet,
    program: str,
    limits: PreflightPodLimits = QUICK,
    part_s: float = 30.0,
    beside: Callable[[], None] = lambda: None,
) -> tuple[Preflight, list[str]]:
    """The result, and what was told meanwhile. Raises as `follow_check` does."""
    flags = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "image_name": "i",
        "job_name": "iris",
        "job_dir": "/jobs/iris",
        "envs": "PRICE=5$",
    }
    spec = JobSpec.from_flags(Action.TRAIN, flags)
    env = ProcessEnv(spec, "/jobs/iris", "iris-master:50001", "opensesame", None)
    process = env.check()
    question = {**process.env, SPEC_VARIABLE: spec.model_dump_json()}
    process = replace(process, command=(sys.executable, "-c", program), env=question)
    told: list[str] = []

    def make(attempt: int) -> Json:
        return pod_object(OWNER, pod_plan(spec, Role.WORKER), process, attempt)

    async def story() -> Preflight:
        async with serving(cluster) as api:
            with check_streams() as streams:
                async with preflight_pod(api, OWNER, make, streams.standard, limits) as check:
                    follow = asyncio.to_thread(
                        follow_check,
                        spec,
                        check,
                        streams,
                        PreflightLimits(part_s=part_s),
                        told.append,
                    )
                    running = asyncio.ensure_future(follow)
                    beside()
                    return await running

    found = asyncio.run(story())
    return found, told


def failure(cluster: SmallKubelet, program: str, **options: Any) -> ElasticDLError:
    with pytest.raises(ElasticDLError) as caught:
        checked(cluster, program, **options)
    assert not [path for path in cluster.objects if path.startswith(PODS)], "no pod stays"
    return caught.value


def test_the_pod_gets_the_job_and_a_workers_environment_and_no_token(cluster: SmallKubelet) -> None:
    shows = (
        "import json, os, sys; spec = json.loads(os.environ['ELASTICDL_JOB']);"
        f" print({CHECK_MARK!r} + json.dumps({{'ok': True, 'training': [], 'env': dict(os.environ),"
        " 'model': spec['model']['model_def'], 'question': sys.stdin.read()}))"
    )
    found, _ = checked(cluster, shows)
    assert (found.raw["model"], found.raw["question"]) == ("m", "")
    env = found.raw["env"]
    assert env["PRICE"] == "5$" and "opensesame" not in json.dumps(env)
    assert not {"ELASTICDL_TOKEN", "ELASTICDL_PROCESS", "ELASTICDL_MASTER"} & set(env)
    (pod,) = cluster.seen
    body = pod["spec"]
    assert body["automountServiceAccountToken"] is False and "serviceAccountName" not in body
    assert [volume["name"] for volume in body["volumes"]] == ["tmp"]
    assert not [one for one in body["containers"][0]["env"] if "secretKeyRef" in json.dumps(one)]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == OWNER.uid
    assert cluster.deleted == [("iris-check-1", 1)]


def test_progress_and_result_come_through_the_log_beside_what_the_user_prints(
    cluster: SmallKubelet,
) -> None:
    program = (
        "import sys, time; print('hello from the model', file=sys.stderr);"
        f' print({CHECK_MARK!r} + \'{{"stage": "counting records"}}\');'
        f' print({CHECK_MARK!r} + \'{{"counted": 32, "files": 3200}}\', flush=True);'
        f" time.sleep(4); {FINE}"
    )
    found, told = checked(cluster, program)
    assert [source.records for source in found.training] == [40]
    assert any("32 of 3,200 files" in text for text in told)


def test_json_that_the_users_code_prints_is_no_result(cluster: SmallKubelet) -> None:
    error = failure(cluster, f"import sys; print({ANSWER!r}); sys.exit(7)")
    assert "exit code 7 and no result" in error.message and ANSWER in error.message


def test_an_end_without_a_result_shows_the_last_output(cluster: SmallKubelet) -> None:
    error = failure(cluster, "import sys; print('so long'); sys.exit(7)")
    assert isinstance(error, UserError) and error.exit_code is ExitCode.USAGE
    assert "exit code 7 and no result" in error.message and "so long" in error.message


def test_a_pod_that_waits_for_room_says_so_and_its_time_does_not_count(
    cluster: SmallKubelet,
) -> None:
    cluster.statuses = [NO_ROOM] * 100
    _, told = checked(cluster, FINE, part_s=4.0)
    waits, then = told
    assert "waits: no node has room for it: 0/3 nodes: Insufficient cpu" in waits
    assert then == "checking the model and the data"


def test_a_pod_that_gets_no_place_ends_the_check_with_the_schedulers_words(
    cluster: SmallKubelet,
) -> None:
    cluster.statuses = [NO_ROOM] * 1000
    error = failure(cluster, FINE, limits=replace(QUICK, place_s=0.5))
    assert isinstance(error, ClusterRefused)
    assert "got no place within 0.5 s" in error.message and "Insufficient cpu" in error.message
    assert "--worker-resource-request" in error.hint


def test_a_pod_that_the_scheduler_forgets_is_followed_by_another_one(cluster: SmallKubelet) -> None:
    cluster.statuses = [NO_ROOM | {"nominatedNodeName": "node7"}] * 15
    checked(cluster, FINE, limits=replace(QUICK, nominated_s=0.5))
    assert [name for name, _ in cluster.deleted][:2] == ["iris-check-1", "iris-check-2"]


def test_an_image_that_cannot_be_pulled_ends_the_check(cluster: SmallKubelet) -> None:
    cluster.statuses = [waiting("ErrImagePull")] * 1000
    error = failure(cluster, FINE)
    assert isinstance(error, ClusterRefused)
    assert "cannot start: image i cannot be pulled" in error.message


def test_a_refusal_that_may_pass_is_waited_for_and_one_that_may_not_is_reported(
    cluster: SmallKubelet,
) -> None:
    refusals = [
        'pods "iris-check-1" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2,'
        " limited: pods=2"
    ] * 3

    def bend(method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        if method == "POST" and path == PODS and refusals:
            return {"code": 403, "reason": "Forbidden", "message": refusals.pop()}
        return None

    cluster.bend = bend
    _, told = checked(cluster, FINE)
    assert "waits: quota team exhausted" in told[0]
    refusals.append('pods "iris-check-1" is forbidden: violates PodSecurity "restricted": x')
    assert "cannot be created" in failure(cluster, FINE).message


@pytest.mark.parametrize("reason", ["Evicted", "Preempting", "NodeLost"])
def test_a_pod_that_the_cluster_ended_is_followed_by_another_one(
    cluster: SmallKubelet, reason: str
) -> None:
    cluster.ends = [{"phase": "Failed", "reason": reason, "message": "too bad"}]
    found, _ = checked(cluster, FINE)
    assert found.raw["ok"]
    assert cluster.deleted == [("iris-check-1", 1), ("iris-check-2", 1)]


def test_a_cluster_that_ends_every_pod_ends_the_check(cluster: SmallKubelet) -> None:
    cluster.ends = [{"phase": "Failed", "reason": "Evicted", "message": "disk"}] * 9
    error = failure(cluster, FINE, limits=replace(QUICK, most_lost=2))
    assert isinstance(error, ClusterRefused) and "evicted by its node: disk" in error.message
    assert len(cluster.seen) == 3


def test_a_check_without_memory_names_the_flag(cluster: SmallKubelet) -> None:
    cluster.ends = [ended(exitCode=137, reason="OOMKilled")]
    error = failure(cluster, FINE)
    assert isinstance(error, UserError) and error.exit_code is ExitCode.USAGE
    assert "out of memory" in error.message and "--worker-resource-limit" in error.hint
