"""What a master in a pod sees to before it begins: over real HTTP, against an API server that keeps
what it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import CreateRefused, ProcessName
from elasticdl.cluster.kubernetes.job_objects import TOKEN_KEY, UID_KEY, services, token_secret
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL, MASTER, labels
from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from elasticdl.errors import ElasticDLError, ExitCode, MasterSuperseded
from elasticdl.master.platform.kubernetes_resources import (
    KubernetesResources,
    ProvisionedResources,
    Timing,
)
from elasticdl.tls.authority import Authority
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving
from tests.waiting import until_async

pytestmark = pytest.mark.contract
OWNER, BEFORE = Owner("ns", "iris", "uid-1"), Owner("ns", "iris", "uid-0")
CORE = "/api/v1/namespaces/ns"
MADE = ["iris", "iris", "iris-abcde", "iris-master", "iris-master", "iris-token", "iris-viewer"]
TERM = 1795255207
"""The second in which the API server made the master's pod."""


@pytest.fixture
def cluster() -> SmallCluster:
    made = SmallCluster()
    made.put(
        f"{CORE}/pods",
        {"metadata": {"name": "iris-abcde", "creationTimestamp": "2026-11-21T10:00:07Z"}},
    )
    return made


QUICK = Timing(look_every_s=0.05, secret_again_s=0.05)


def provide(
    cluster: SmallCluster,
    folder: Path,
    beside: Callable[[], Any] = lambda: None,
    when: Callable[[], Any] = lambda: True,
    timing: Timing = QUICK,
    *,
    secured: bool = False,
    anew: bool = False,
) -> ProvisionedResources:
    """`beside` happens as soon as `when` holds. `anew`: without what an earlier master left."""

    async def story() -> ProvisionedResources:
        async with serving(cluster) as api:
            resources = KubernetesResources(
                api, OWNER, "iris-abcde", folder, timing, secured=secured
            )
            work = asyncio.ensure_future(provided(api, resources, anew=anew))
            await until_async("the time has come", when)
            beside()
            return await work

    return asyncio.run(story())


async def provided(
    api: Any, resources: KubernetesResources, *, anew: bool = False
) -> ProvisionedResources:
    """As a master does it at its start."""
    term = await resources.take_over(MasterLease(api, OWNER, "iris-abcde", SystemClock()))
    assert term >= TERM
    found = await resources.provide()
    if anew:
        await resources.end_earlier()
    return found


def mount(folder: Path, token: str, uid: str) -> None:
    (folder / TOKEN_KEY).write_text(token)
    (folder / UID_KEY).write_text(uid)


def pod(cluster: SmallCluster, name: str, uid: str = OWNER.uid) -> None:
    cluster.put(f"{CORE}/pods", {"metadata": {"name": name, "labels": {JOB_UID_LABEL: uid}}})


def test_the_first_master_makes_the_token_and_what_its_processes_need(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    found = provide(cluster, tmp_path)
    secret = cluster.objects[f"{CORE}/secrets/iris-token"]
    assert (
        secret["stringData"] == {TOKEN_KEY: found.token, UID_KEY: OWNER.uid}
        and len(found.token) > 30
    )
    assert cluster.names() == MADE and not found.replaces
    assert found.token not in repr(found)


def test_all_masters_of_a_job_with_tls_have_one_authority(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    first = provide(cluster, tmp_path, secured=True)
    assert first.authority is not None and "PRIVATE" not in repr(first)
    made = {name: cluster.objects[f"{CORE}/secrets/iris-{name}"] for name in ("token", "viewer")}
    own, viewer = (made[name]["stringData"] for name in ("token", "viewer"))
    assert (own["ca.crt"], own["ca.key"]) == (first.authority.certificate, first.authority.key)
    assert viewer["ca.crt"] == own["ca.crt"] and "ca.key" not in viewer
    ports = cluster.objects[f"{CORE}/services/iris-master"]["spec"]["ports"]
    assert [port.get("appProtocol") for port in ports] == ["tls", None, "https"]
    for key, text in own.items():
        (tmp_path / key).write_text(text)
    assert provide(cluster, tmp_path, secured=True).authority == first.authority
    # What it signs is good for those who trust what the first one left.
    assert Authority(first.authority).certificate == own["ca.crt"]


def test_the_next_master_keeps_the_token_and_leaves_the_processes_alone(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    mount(tmp_path, "opensesame", OWNER.uid)
    pod(cluster, "iris-worker-0")
    found = provide(cluster, tmp_path)
    assert (found.token, found.replaces) == ("opensesame", True)
    assert not cluster.deleted


def test_a_master_that_starts_over_ends_what_the_one_before_left(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    mount(tmp_path, "opensesame", OWNER.uid)
    for name in ("iris-worker-0", "iris-ps-0"):
        pod(cluster, name)
    pod(cluster, "other-worker-0", "uid-9")
    provide(cluster, tmp_path, anew=True)
    assert sorted(cluster.deleted) == [("iris-ps-0", 1), ("iris-worker-0", 1)]
    assert "other-worker-0" in cluster.names() and "iris-master" in cluster.names()


def test_a_pod_that_does_not_go_is_taken_off_the_books(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    mount(tmp_path, "opensesame", OWNER.uid)
    pod(cluster, "iris-worker-0")
    cluster.stubborn = {"iris-worker-0"}
    provide(cluster, tmp_path, timing=replace(QUICK, force_after_s=0.2), anew=True)
    assert cluster.deleted == [("iris-worker-0", 1), ("iris-worker-0", 0)]


def test_the_master_of_a_deleted_job_of_the_same_name_is_waited_for(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    def master(name: str, uid: str, phase: str) -> None:
        metadata = {
            "name": name,
            "labels": labels("iris", MASTER),
            "ownerReferences": [{"kind": "Job", "name": "iris", "uid": uid}],
        }
        cluster.put(f"{CORE}/pods", {"metadata": metadata, "status": {"phase": phase}})

    for name, uid, phase in (
        ("iris-mine", OWNER.uid, "Running"),
        ("iris-done", BEFORE.uid, "Failed"),
        ("iris-old", BEFORE.uid, "Running"),
    ):
        master(name, uid, phase)

    def gone() -> None:
        assert f"{CORE}/secrets/iris-token" not in cluster.objects, (
            "two masters may have one directory"
        )
        del cluster.objects[f"{CORE}/pods/iris-old"]

    assert provide(cluster, tmp_path, gone).token


def test_the_master_of_a_deleted_job_that_does_not_go_is_not_waited_for_for_ever(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    cluster.put(
        f"{CORE}/pods",
        {
            "metadata": {"name": "iris-old", "labels": labels("iris", MASTER)},
            "status": {"phase": "Running"},
        },
    )
    assert provide(cluster, tmp_path, timing=replace(QUICK, namesake_s=0.1)).token


def test_what_a_job_of_the_same_name_left_is_waited_for_not_used(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    mount(tmp_path, "stale", BEFORE.uid)
    cluster.put(f"{CORE}/secrets", token_secret(BEFORE, "stale"))
    cluster.put(f"{CORE}/services", services(BEFORE)[0])

    def cleared() -> None:
        del (
            cluster.objects[f"{CORE}/secrets/iris-token"],
            cluster.objects[f"{CORE}/services/iris-master"],
        )

    found = provide(cluster, tmp_path, cleared, lambda: "iris-token" in cluster.taken)
    assert found.token != "stale" and not found.replaces
    assert (
        cluster.objects[f"{CORE}/services/iris-master"]["metadata"]["ownerReferences"][0]["uid"]
        == OWNER.uid
    )


def test_a_secret_whose_making_was_not_confirmed_is_read_when_it_is_mounted(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    def lost(method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        return (
            status(500, "InternalError", "etcd: leader changed")
            if (method, path) == ("POST", f"{CORE}/secrets")
            else None
        )

    cluster.lose = lost
    made = cluster.objects

    def mounted() -> None:
        mount(tmp_path, made[f"{CORE}/secrets/iris-token"]["stringData"][TOKEN_KEY], OWNER.uid)

    found = provide(cluster, tmp_path, mounted, lambda: "iris-token" in cluster.taken)
    assert found.token == made[f"{CORE}/secrets/iris-token"]["stringData"][TOKEN_KEY]


def test_an_api_server_that_is_away_for_a_moment_is_waited_for(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    busy = [status(503, "ServiceUnavailable")] * 2

    cluster.bend = lambda _method, _path, _body: busy.pop() if busy else None
    assert provide(cluster, tmp_path).token
    assert cluster.names() == MADE


def test_an_api_server_that_stays_away_has_the_master_started_again(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    cluster.bend = lambda _method, _path, _body: status(503, "ServiceUnavailable")
    with pytest.raises(ElasticDLError, match="resources within 1 s") as away:
        provide(cluster, tmp_path, timing=replace(QUICK, limit_s=1.0))
    assert away.value.exit_code is ExitCode.UNAVAILABLE


def test_a_master_whose_pod_was_deleted_by_force_leaves_without_a_verdict(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    del cluster.objects[f"{CORE}/pods/iris-abcde"]
    with pytest.raises(MasterSuperseded, match="pod iris-abcde of this master was deleted"):
        provide(cluster, tmp_path)


def test_a_right_that_is_missing_is_named_and_nothing_is_made(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    cluster.lacking = {"watch pods"}
    with pytest.raises(ElasticDLError, match="not allowed in namespace ns: watch pods") as refused:
        provide(cluster, tmp_path, timing=replace(QUICK, rights_limit_s=0.1))
    assert refused.value.exit_code is ExitCode.CLUSTER_REFUSED
    assert cluster.names() == ["iris-abcde"]


def test_rights_that_are_as_new_as_the_job_are_waited_for(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    cluster.lacking = {"watch pods", "create secrets"}
    provide(cluster, tmp_path, cluster.lacking.clear, lambda: len(cluster.denied) == 2)
    assert cluster.names() == MADE


@pytest.mark.parametrize(
    "said",
    [
        'secrets "iris-token" is forbidden: status unknown for quota: team, resources: secrets',
        (
            'secrets "iris-token" is forbidden: exceeded quota: team, requested: secrets=1, used:'
            " secrets=2, limited: secrets=2"
        ),
        'secrets "iris-token" is forbidden: not yet ready to handle request',
    ],
)
def test_what_the_cluster_does_not_allow_yet_is_asked_for_again(
    cluster: SmallCluster, tmp_path: Path, said: str
) -> None:
    refused = [status(403, "Forbidden", said)]
    cluster.bend = lambda _method, path, _body: (
        refused.pop() if refused and path.endswith("/secrets") else None
    )
    assert provide(cluster, tmp_path).token
    assert not refused and cluster.names() == MADE


def test_a_pod_that_somebody_holds_does_not_keep_the_next_master_waiting(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    # Both are over before it looks again, as after a time in which it stood still: it is asked for
    # by force all the same.
    mount(tmp_path, "opensesame", OWNER.uid)
    pod(cluster, "iris-worker-0")
    pod(cluster, "iris-worker-1")
    cluster.held = {"iris-worker-0"}
    provide(
        cluster,
        tmp_path,
        timing=replace(QUICK, force_after_s=0.1, stuck_after_s=0.1, look_every_s=0.3),
        anew=True,
    )
    assert ("iris-worker-0", 0) in cluster.deleted and "iris-worker-1" not in cluster.names()
    assert "iris-master" in cluster.names()


@pytest.mark.parametrize(
    "gone",
    [
        "secrets/iris-token",
        "secrets/iris-viewer",
        "secrets/iris-tokens-uid-1-worker-0",
        "services/iris-master",
        "services/iris",
    ],
)
async def test_what_somebody_deletes_while_the_job_runs_is_made_again(
    cluster: SmallCluster, tmp_path: Path, gone: str
) -> None:
    async with serving(cluster) as api:
        resources = KubernetesResources(
            api, OWNER, "iris-abcde", tmp_path, replace(QUICK, keep_every_s=0.05)
        )
        token = (await provided(api, resources)).token
        tokens = ProcessSecrets(api, OWNER, lambda name: f"token of {name}")
        await tokens.provide(ProcessName.parse("worker-3"))
        before = cluster.objects.pop(f"{CORE}/{gone}")
        keeping = asyncio.ensure_future(resources.keep(token, tokens))
        again = await until_async(
            f"{gone} is made again", lambda: cluster.objects.get(f"{CORE}/{gone}")
        )
        keeping.cancel()
        assert again["metadata"]["uid"] != before["metadata"]["uid"]
        assert {**again, "metadata": None} == {**before, "metadata": None}
    assert cluster.names() == sorted([*MADE, "iris-tokens-uid-1-worker-0"])


async def test_processes_that_start_together_share_one_request_for_their_secret(
    cluster: SmallCluster,
) -> None:
    asked: list[str] = []
    says_no = True

    def bend(method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(f"{method} {path}")
        return status(403, "Forbidden", "the namespace is being terminated") if says_no else None

    async with serving(cluster) as api:
        cluster.bend = bend
        tokens = ProcessSecrets(api, OWNER, lambda name: f"token of {name}")
        names = [ProcessName.parse(f"worker-{index}") for index in range(65)]
        together = [tokens.provide(name) for name in names]
        refused = await asyncio.gather(*together, return_exceptions=True)
        assert all(isinstance(one, CreateRefused) for one in refused)
        says_no = False
        await asyncio.gather(*(tokens.provide(name) for name in names))
    assert asked == 4 * [f"POST {CORE}/secrets"], "two Secrets, of 64 processes each"


async def test_looking_after_them_survives_an_api_server_that_says_no(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    asked: list[str] = []

    def bend(method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(path)
        return (
            status(403, "Forbidden", "the namespace is being terminated")
            if method == "GET"
            else None
        )

    async with serving(cluster) as api:
        keeping = asyncio.ensure_future(
            KubernetesResources(
                api, OWNER, "iris-abcde", tmp_path, replace(QUICK, keep_every_s=0.05)
            ).keep("opensesame", ProcessSecrets(api, OWNER, str))
        )
        cluster.bend = bend
        await until_async("it asked three times", lambda: len(asked) >= 3)
        assert not keeping.done()
        keeping.cancel()
