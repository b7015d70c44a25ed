"""What a cluster does to pods, done for real, and the facts and words that come of it."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from elasticdl.cluster.base import CreateRefused, ProcessName, ProcessObserved, ProcessSpec, Role
from elasticdl.cluster.kubernetes.cluster import ClusterOptions
from elasticdl.cluster.kubernetes.job_objects import pod
from elasticdl.cluster.kubernetes.plans import Identity, Image, Owner, Placement, Resources
from elasticdl.master.core.processes.causes import Cause, verdict_of
from tests.kubernetes.scripted_pods import SLEEP, ScriptedPods, plan, scripted_pods
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = pytest.mark.kubernetes
LIMIT_S = 200.0
W0, W1, W2 = (ProcessName(Role.WORKER, index) for index in range(3))
Scenario: TypeAlias = Callable[[ScriptedPods], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    return shared_namespace


@pytest.fixture
def run(place: TargetCluster, owner: Owner) -> Callable[..., None]:
    def run_scenario(scenario: Scenario, habits: ClusterOptions | None = None) -> None:
        async def with_cluster() -> None:
            async with asyncio.timeout(LIMIT_S), scripted_pods(place, owner, habits) as ready:
                await scenario(ready)

        asyncio.run(with_cluster())

    return run_scenario


def apply(place: TargetCluster, namespace: str, **body: Any) -> None:
    metadata = {
        "name": "test",
        **({"namespace": namespace} if namespace else {}),
        **body.pop("metadata", {}),
    }
    place.create({"metadata": metadata, **body})


def test_a_pod_that_somebody_deleted_has_ended_and_we_did_not_ask_for_it(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.start(W0)
        await asyncio.to_thread(b.place.delete, "pods", b.pod(W0), namespace=b.owner.namespace)
        status = await b.ended(W0)
        assert (status.signal, status.asked) == (15, False)

    run(scenario)


def test_a_pod_that_was_forced_away_has_ended_and_nothing_is_known(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.start(W0)
        await asyncio.to_thread(
            b.place.kubectl,
            "-n",
            b.owner.namespace,
            "delete",
            "pod",
            b.pod(W0),
            "--force",
            "--grace-period=0",
        )
        status = await b.ended(W0)
        assert (status.exit_code, status.signal, status.asked) == (None, None, False)

    run(scenario)


def test_an_eviction_through_the_api_is_reported_as_one(run: Callable[[Scenario], None]) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.start(W0)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": b.pod(W0), "namespace": b.owner.namespace},
        }
        path = f"/api/v1/namespaces/{b.owner.namespace}/pods/{b.pod(W0)}/eviction"
        await asyncio.to_thread(b.place.call, "POST", path, json.dumps(eviction))
        status = await b.ended(W0)
        assert status.conditions == ("DisruptionTarget:EvictionByEvictionAPI",)
        assert verdict_of(status).cause is Cause.EVICTED

    run(scenario)


def test_too_much_memory_is_reported_by_the_platforms_reason(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        b.change_plan(W0, resources=Resources({"memory": "16Mi"}, {"memory": "16Mi"}))
        await b.create(W0, "exec tail /dev/zero")
        status = await b.ended(W0)
        assert status.reason == "OOMKilled"
        assert verdict_of(status).cause is Cause.OUT_OF_MEMORY

    run(scenario)


def test_the_last_words_of_a_process_come_with_its_end(run: Callable[[Scenario], None]) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.create(W0, "echo Traceback; echo ValueError: no such thing; exit 1")
        status = await b.ended(W0)
        assert status.log_tail.splitlines() == ["Traceback", "ValueError: no such thing"]

    run(scenario)


def test_last_words_too_long_for_a_status_are_read_from_the_log(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.create(W0, f"echo FIRST; for i in $(seq 50); do echo {'x' * 80} $i; done; exit 1")
        lines = (await b.ended(W0)).log_tail.splitlines()
        assert (lines[0], len(lines)) == ("FIRST", 51)

    run(scenario)


def test_a_program_that_is_not_there_ends_with_the_platforms_words(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.cluster.create(ProcessSpec(W0, ("/no/such/program",)))
        status = await b.ended(W0)
        assert status.reason == "StartError"
        assert "/no/such/program" in status.log_tail and "no such file" in status.log_tail

    run(scenario)


@pytest.fixture(scope="module", autouse=True)
def unpullable(whole_cluster: TargetCluster) -> Iterator[Future[None]]:
    """How it goes with a pod whose image is nowhere: that takes most of a minute, in which the
    other tests go on.
    """
    namespace = f"elasticdl-test-{uuid.uuid4().hex[:8]}"
    whole_cluster.make_namespace(namespace)
    story = _unpullable(whole_cluster, whole_cluster.owner(namespace))
    with ThreadPoolExecutor(1) as beside:
        with whole_cluster.entered():
            # A thread begins in the network that the one is in which made it.
            future = beside.submit(asyncio.run, story)
        yield future
    whole_cluster.delete("namespaces", namespace)


async def _unpullable(place: TargetCluster, owner: Owner) -> None:
    async with asyncio.timeout(LIMIT_S), scripted_pods(place, owner) as b:
        began_s = time.monotonic()
        b.change_plan(W0, image=Image("registry.invalid/zoo:1"))
        await b.create(W0, SLEEP)
        words = await b.waits(W0, "cannot be pulled")
        assert "registry.invalid/zoo:1" in words
        status = await b.ended(W0, 70)
        assert (
            status.reason == "ImagePullFailed"
            and "registry.invalid" in status.log_tail
            and not status.asked
        )
        assert time.monotonic() - began_s < 60


def test_a_pod_without_room_says_what_is_lacking_and_is_deleted_without_ever_running(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        b.change_plan(W0, resources=Resources({"cpu": "900"}))
        await b.create(W0, SLEEP)
        assert "Insufficient cpu" in await b.waits(W0, "no node has room")
        await b.cluster.delete(W0, grace_s=5)
        status = await b.ended(W0)
        assert (status.exit_code, status.signal, status.asked) == (None, None, True)

    run(scenario)


def test_quota_refuses_in_words_and_there_is_room_again_when_a_process_has_ended(
    run: Callable[[Scenario], None], place: TargetCluster, namespace: str
) -> None:
    apply(place, namespace, apiVersion="v1", kind="ResourceQuota", spec={"hard": {"pods": "1"}})

    async def scenario(b: ScriptedPods) -> None:
        await b.start(W0)
        await _refused(
            b, W1, retry=True, words=["quota test exhausted", "pods 1 of 1 used, 1 more asked for"]
        )
        await b.cluster.delete(W0, grace_s=1)
        await b.ended(W0)
        await _created(b, W1)

    # Pods of the tests before count until they have gone.
    nobody = ("--for=jsonpath={.status.used.pods}=0", "resourcequota/test", "--timeout=50s")
    try:
        place.kubectl("-n", namespace, "wait", *nobody)
        run(scenario)
    finally:
        place.delete("resourcequotas", "test", namespace=namespace)


def test_what_pod_security_does_not_allow_is_refused_for_good_with_its_words(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        b.change_plan(W0, identity=Identity(user=0))
        await _refused(b, W0, retry=False, words=["pod security (restricted", "runAsUser=0"])

    run(scenario)


def test_a_priority_class_or_service_account_that_is_not_there_is_refused_for_good(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        b.change_plan(W0, placement=Placement("no-such-class"))
        await _refused(b, W0, retry=False, words=["no priority class no-such-class"])
        b.change_plan(W0, identity=Identity("nobody", user=1000))
        await _refused(b, W0, retry=False, words=["no service account nobody"])

    run(scenario)


def test_a_pod_of_somebody_else_is_left_alone(
    run: Callable[[Scenario], None], place: TargetCluster, owner: Owner
) -> None:
    theirs = pod(owner, plan(place), ProcessSpec(W0, ("/bin/sleep", "600")))
    theirs["metadata"] = {key: theirs["metadata"][key] for key in ("name", "namespace")}
    place.create(theirs)
    name = theirs["metadata"]["name"]
    uid = place.read("pods", name, namespace=owner.namespace)["metadata"]["uid"]

    async def scenario(b: ScriptedPods) -> None:
        await _refused(b, W0, retry=False, words=[b.pod(W0), "does not belong to this job"])

    try:
        run(scenario)
        left = place.read("pods", name, namespace=owner.namespace)["metadata"]
        assert left["uid"] == uid and "deletionTimestamp" not in left
    finally:
        place.delete("pods", name, namespace=owner.namespace)


def test_a_master_that_replaces_another_finds_its_processes_and_their_ends(
    run: Callable[[Scenario], None], place: TargetCluster, owner: Owner
) -> None:
    async def scenario(b: ScriptedPods) -> None:
        await b.start(W0)
        await b.create(W1, "exit 7")
        await b.ended(W1)
        async with scripted_pods(place, owner) as successor:
            seen = await successor.seen(W0)
            assert isinstance(seen, ProcessObserved) and seen.where
            assert (await successor.ended(W1)).exit_code == 7
            await successor.create(W0, SLEEP)
            assert successor.starts(W0) == 1

    run(scenario)


def test_an_image_that_cannot_be_pulled_is_reported_while_waiting_and_given_up_within_a_minute(
    unpullable: Future[None],
) -> None:
    unpullable.result(LIMIT_S)


@pytest.mark.usefixtures("two_fake_nodes")
def test_a_node_that_falls_silent_is_reported_as_lost_and_comes_back(
    run: Callable[..., None], place: TargetCluster
) -> None:
    """With other nodes beside it: where all are silent, Kubernetes takes itself for the one that is
    cut off and evicts nobody.
    """
    if place.own is None:
        pytest.skip("only the tests' own cluster may lose its node")
    cluster = place.own

    async def scenario(b: ScriptedPods) -> None:
        # As a user may say it; by default a pod stays with a node that is gone for 30 s.
        soon = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        gone = tuple(
            {"key": f"node.kubernetes.io/{key}", **soon} for key in ("not-ready", "unreachable")
        )
        b.change_plan(W0, placement=Placement(tolerations=gone))
        await b.start(W0)
        cluster.kill("kubelet")
        try:
            status = await b.ended(W0, 150)
        finally:
            cluster.start("kubelet")
        assert status.reason == "NodeLost"
        assert verdict_of(status).cause is Cause.NODE_LOST
        await asyncio.to_thread(place.wait_until_node_is_back)
        await b.start(W1)

    # Longer than the pod's grace.
    run(scenario, ClusterOptions(overdue_s=8.0))


def test_nothing_is_missed_while_the_api_server_is_away(
    run: Callable[[Scenario], None], place: TargetCluster
) -> None:
    if place.own is None:
        pytest.skip("only the tests' own cluster may lose its API server")
    cluster = place.own

    async def scenario(b: ScriptedPods) -> None:
        await b.create(W0, "sleep 6; exit 5")
        await b.seen(W0)
        await b.start(W1)
        cluster.kill("kube-apiserver")
        creating = asyncio.ensure_future(_created(b, W2))
        began_cpu_s, began_s = time.process_time(), time.monotonic()
        await asyncio.sleep(8)
        assert b.cluster.view_age_s > 5
        assert (time.process_time() - began_cpu_s) / (time.monotonic() - began_s) < 0.05
        cluster.start("kube-apiserver")
        assert (await b.ended(W0, 90)).exit_code == 5
        await creating
        # The scheduler and the node look for their API server at longer and longer intervals.
        await b.seen(W2, limit_s=90)
        assert isinstance(await b.seen(W1), ProcessObserved)
        assert b.starts(W2) == 1

    run(scenario)


async def _created(b: ScriptedPods, name: ProcessName) -> None:
    """As a job does it: what is refused for now is asked for again."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await b.create(name, SLEEP)
            except CreateRefused as refused:
                assert refused.retry, refused.reason
                await asyncio.sleep(0.2)


async def _refused(b: ScriptedPods, name: ProcessName, *, retry: bool, words: list[str]) -> None:
    with pytest.raises(CreateRefused) as refused:
        await b.create(name, SLEEP)
    assert refused.value.retry == retry
    assert all(part in refused.value.reason for part in words), refused.value.reason
