"""`train --image-name` whose master can never start: told with the registry's words in under a
minute, and nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.jobs.cluster_client import ClusterClient, LoopThread
from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
from elasticdl.cli.jobs.kubernetes_launch import StartLimits, submit_job
from elasticdl.cli.jobs.start_diagnosis import CannotStart
from elasticdl.cli.jobs.watch import wait
from elasticdl.cli.request import Request, settle
from elasticdl.cli.views.documents import Format
from elasticdl.cli.views.live_view import NoView
from elasticdl.cluster.kubernetes.job_objects import token_secret
from elasticdl.cluster.kubernetes.labels import MASTER, labels
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.errors import ExitCode
from elasticdl.job_choices import Action
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving

pytestmark = pytest.mark.contract
CORE, JOBS = "/api/v1/namespaces/ns", "/apis/batch/v1/namespaces/ns/jobs"
UNAUTHORIZED = 'failed to pull image "r/zoo:1": 401 Unauthorized'
PULL = {"waiting": {"reason": "ErrImagePull", "message": UNAUTHORIZED}}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
NO_PYTHON = {
    "terminated": {
        "exitCode": 128,
        "reason": "StartError",
        "message": 'exec: "python3": executable file not found',
    }
}
RUNS = {"running": {"startedAt": "2026-11-21T10:00:02Z"}}
PREPARED = {"waiting": {"reason": "ContainerCreating"}}


class Cluster(SmallCluster):
    """Makes a Job's pod as soon as there is the Job; each look at its pods finds the next of
    `states`, the last of them for ever.
    """

    def __init__(self, *states: dict[str, Any]) -> None:
        super().__init__()
        self.states = list(states)

    def put(self, path: str, made: dict[str, Any]) -> dict[str, Any]:
        made = super().put(path, made)
        if path == JOBS:
            made["metadata"]["namespace"] = "ns"
            metadata = {"name": "ads-abcde", "namespace": "ns", "labels": labels("ads", MASTER)}
            owners = [{"kind": "Job", "name": "ads", "uid": made["metadata"]["uid"]}]
            container = {"name": "process", "image": "r/zoo:1"}
            body = {
                "metadata": {**metadata, "ownerReferences": owners},
                "spec": {"nodeName": "node0", "containers": [container]},
            }
            super().put(f"{CORE}/pods", body)
        return made

    def _listed(self, path: str, selector: str) -> list[dict[str, Any]]:
        found = super()._listed(path, selector)
        for pod in found:
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            phase = (
                "Failed"
                if "terminated" in state
                else "Running"
                if "running" in state
                else "Pending"
            )
            pod["status"] = {
                "phase": phase,
                "containerStatuses": [{"name": "process", "state": state}],
            }
        return found


SHORT = StartLimits(start_limit_s=0.3, look_s=30.0, look_every_s=0.05)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("api server")
    yield thread
    thread.close()


@pytest.fixture
def serve(loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a cluster the one of the current kube context."""
    stop, done = asyncio.Event(), threading.Event()

    def serve(cluster: Cluster) -> Cluster:
        ready: asyncio.Future[str] = loop.run(_future())

        async def life() -> None:
            async with AsyncExitStack() as stack:
                api = await stack.enter_async_context(serving(cluster))
                ready.set_result(api._client.configuration.host)
                await stop.wait()
            done.set()

        async def begin() -> None:
            cluster.life = asyncio.ensure_future(life())  # type: ignore[attr-defined]

        loop.run(begin())
        host = loop.run(asyncio.wait_for(ready, 10))
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}
        config = {
            "clusters": [{"name": "c", "cluster": {"server": host}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "kubeconfig").write_text(
            json.dumps({**config, "contexts": [context], "current-context": "c"})
        )
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        return cluster

    yield serve

    async def end() -> None:
        stop.set()

    loop.run(end())
    assert done.wait(10)


async def _future() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


def train(*, detach: bool, form: Format | None = None, limits: StartLimits = SHORT) -> int:
    flags = {"model_def": "m", "training_data": "t", "image_name": "r/zoo:1", "job_name": "ads"}
    return submit_job(settle(Request(Action.TRAIN, flags)), form, detach=detach, limits=limits)


@pytest.mark.parametrize("detach", [False, True], ids=["waiting", "detached"])
@pytest.mark.parametrize(
    ("states", "words", "hint"),
    [
        ((PREPARED, *[PULL] * 6, BACK_OFF), UNAUTHORIZED, "--image-pull-secrets"),
        (
            (PREPARED, NO_PYTHON),
            'exec: "python3": executable file not found',
            "elasticdl zoo build",
        ),
        (
            (PREPARED, {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse"}}),
            "couldn't parse",
            "--image-name",
        ),
    ],
    ids=["image", "program", "name"],
)
def test_train_ends_with_the_words_and_leaves_nothing(
    serve: Any, states: Any, words: str, hint: str, detach: bool
) -> None:
    cluster = serve(Cluster(*states))
    with pytest.raises(CannotStart) as failed:
        train(detach=detach)
    assert failed.value.exit_code is ExitCode.JOB_FAILED
    assert words in failed.value.message and "The job is deleted again." in failed.value.message
    assert hint in failed.value.hint and "elasticdl stop" not in failed.value.hint
    assert cluster.objects == {}


@pytest.mark.parametrize("state", [RUNS, PREPARED], ids=["runs", "prepared"])
def test_a_job_that_starts_or_still_may_is_left_alone(
    serve: Any, state: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = serve(Cluster(PREPARED, state))
    form = None if state is RUNS else Format.JSON
    assert train(detach=True, form=form, limits=replace(SHORT, look_s=0.2)) == 0
    output = capsys.readouterr().out
    assert output == "ads\n" if state is RUNS else json.loads(output)["job"] == "ads"
    assert cluster.names() == ["ads", "ads-abcde"]


def test_who_may_submit_and_nothing_else_is_told_that_the_job_is_still_there_or_nothing(
    serve: Any,
) -> None:
    cluster = serve(Cluster(PULL))
    may_look = True

    def bend(method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        return (
            status(403, "Forbidden")
            if path == f"{JOBS}/ads" and (method == "DELETE" or not may_look)
            else None
        )

    cluster.bend = bend
    with pytest.raises(
        CannotStart, match="The job is still there: you may not delete jobs"
    ) as failed:
        train(detach=True)
    assert UNAUTHORIZED in failed.value.message and "elasticdl stop ads" in failed.value.hint
    cluster.objects.clear()
    may_look = False
    assert train(detach=True) == 0


def test_who_only_looks_is_told_so_too_and_deletes_nothing(serve: Any) -> None:
    cluster = serve(Cluster(PULL))
    cluster.put(
        JOBS,
        {
            "metadata": {"name": "ads", "labels": labels("ads", MASTER)},
            "spec": {"template": {"spec": {"containers": []}}},
        },
    )
    with ClusterClient() as line:
        job = KubernetesJob(line, "ads", start_limit_s=SHORT.start_limit_s)
        report = job.report()
        assert (report.state, report.exit_code) == ("stuck", None)
        assert (
            UNAUTHORIZED in report.status.message
            and "`elasticdl stop ads` clears the job away" in report.hint
        )
        assert UNAUTHORIZED in job.story().missing
        with pytest.raises(CannotStart, match="401 Unauthorized") as failed:
            wait(job, NoView())
    assert "`elasticdl stop ads` clears the job away" in failed.value.hint
    assert cluster.names() == ["ads", "ads-abcde"]


def test_what_a_node_says_while_it_prepares_the_masters_pod_is_reported(serve: Any) -> None:
    cluster = serve(Cluster(PREPARED))
    cluster.put(
        JOBS,
        {
            "metadata": {"name": "ads", "labels": labels("ads", MASTER)},
            "spec": {"template": {"spec": {"containers": []}}},
        },
    )
    said = {
        "10:00": "later it was",
        "10:01": 'MountVolume.SetUp failed for volume "volume-0": configmap "zoo" not found',
    }
    for when, message in said.items():
        event = {
            "metadata": {"name": f"event-{when}"},
            "lastTimestamp": f"2026-11-21T{when}:00Z",
            "message": message,
        }
        cluster.put(f"{CORE}/events", event)
    with ClusterClient() as line:
        job = KubernetesJob(line, "ads")
        words = f"waiting: its master: node node0 is preparing it: {said['10:01']}"
        assert (job.report().state, job.report().status.message) == ("waiting", words)
        # Who may not read events is told the rest.
        cluster.bend = lambda _method, path, _body: (
            status(403, "Forbidden") if path.endswith("/events") else None
        )
        assert job.report().status.message == "waiting: its master: node node0 is preparing it"


def test_why_the_cluster_has_not_made_the_masters_pod_is_reported(serve: Any) -> None:
    cluster = serve(SmallCluster())
    template: dict[str, Any] = {"template": {"spec": {"containers": []}}}
    cluster.put(
        JOBS,
        {
            "metadata": {"name": "ads", "namespace": "ns", "labels": labels("ads", MASTER)},
            "spec": template,
        },
    )
    said = (
        'Error creating: pods "ads-x" is forbidden: exceeded quota: team, requested: pods=1, used:'
        " pods=0, limited: pods=0"
    )
    cluster.put(
        f"{CORE}/events",
        {"metadata": {"name": "e"}, "lastTimestamp": "2026-11-21T10:00:00Z", "message": said},
    )
    with ClusterClient() as line:
        report = KubernetesJob(line, "ads").report()
    assert (
        report.status.message
        == f"waiting: the cluster has not created its master's pod yet: {said}"
    )


def test_a_job_that_ran_is_waited_for_although_its_next_master_has_no_image_now(serve: Any) -> None:
    cluster = serve(Cluster(PULL))
    made = cluster.put(
        JOBS,
        {
            "metadata": {"name": "ads", "labels": labels("ads", MASTER)},
            "spec": {"template": {"spec": {"containers": []}}},
        },
    )
    secret = token_secret(Owner("ns", "ads", made["metadata"]["uid"]), "opensesame")
    cluster.put(f"{CORE}/secrets", {**secret, "data": {"ELASTICDL_TOKEN": "b3BlbnNlc2FtZQ=="}})
    with ClusterClient() as line:
        job = KubernetesJob(line, "ads", start_limit_s=SHORT.start_limit_s)
        with pytest.raises(Exception, match="has not ended after 1 s"):
            wait(job, NoView(), timeout_s=1)
        assert job.report().state == "stuck"
    assert cluster.names() == ["ads", "ads-abcde", "ads-token"]
