"""docker/rbac.yaml is enough, and nothing in it is too much."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import CreateRefused, ProcessExited, ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes import rights
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.job_objects import network_policy, services, token_secret
from elasticdl.cluster.kubernetes.plans import GangApi, Owner
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from tests.kubernetes.scripted_pods import plan
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = pytest.mark.kubernetes
RBAC = list(yaml.safe_load_all((Path(__file__).parents[2] / "docker/rbac.yaml").read_text()))
GRANTED = [
    (verb, resource, group)
    for rule in RBAC[1]["rules"]
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]
ASKED = [one for one in GRANTED if one[2] not in (GangApi.VOLCANO, GangApi.SCHEDULER_PLUGINS)]
"""Rights on PodGroups are alike, whoever has them."""
W0 = ProcessName(Role.WORKER, 0)
HEARD_LIMIT_S = 30.0
ALL = rights.NEEDED + rights.GANGS


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    return shared_namespace


@pytest.fixture(scope="module")
def kubeconfig(
    whole_cluster: TargetCluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Of the service account of docker/rbac.yaml."""
    kubectl = whole_cluster.kubectl
    kubectl("-n", namespace, "create", "-f", "-", text=yaml.safe_dump_all(RBAC))
    token = kubectl("-n", namespace, "create", "token", "elasticdl").strip()
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path_factory.mktemp("account") / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def account(place: TargetCluster, namespace: str, kubeconfig: Path) -> Iterator[Path]:
    """The kubeconfig. The account has all of its rights, and gets them back after the test."""

    async def granted() -> None:
        async with connected(place, kubeconfig) as api:
            found = await rights.lasting(lambda: rights.missing(api, namespace, ALL), HEARD_LIMIT_S)
            assert found == ()

    asyncio.run(granted())
    yield kubeconfig
    change(place, namespace, RBAC[1])


@asynccontextmanager
async def connected(place: TargetCluster, kubeconfig: Path) -> AsyncIterator[ApiServer]:
    api = await place.connect(kubeconfig)
    try:
        yield api
    finally:
        await api.close()


async def taken_away(api: ApiServer, namespace: str) -> rights.Rights:
    """The API server hears of a changed role a moment later."""
    async with asyncio.timeout(HEARD_LIMIT_S):
        while not (lacking := await rights.missing(api, namespace, ALL)):
            await asyncio.sleep(0.05)
        return lacking


def take_away(
    place: TargetCluster, namespace: str, verb: str, resource: str, group: str = ""
) -> None:
    role = copy.deepcopy(RBAC[1])
    for rule in role["rules"]:
        if resource in rule["resources"] and group in rule["apiGroups"]:
            rule["verbs"] = [kept for kept in rule["verbs"] if kept != verb]
    role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    change(place, namespace, role)


def change(place: TargetCluster, namespace: str, role: dict[str, Any]) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles"
    place.call("PUT", f"{path}/{role['metadata']['name']}", json.dumps(role))


def test_a_job_can_do_all_it_needs_with_these_rights(
    place: TargetCluster, owner: Owner, account: Path
) -> None:
    async def life() -> tuple[rights.Rights, Any]:
        async with connected(place, account) as api:
            lacking = await rights.missing(api, owner.namespace)
            tokens = ProcessSecrets(api, owner, lambda name: f"opensesame-{name}")
            cluster = KubernetesCluster(api, owner, lambda _: plan(place), secrets=tokens)
            await Creator(api, owner.uid, SystemClock()).provide(
                [*services(owner), network_policy(owner), token_secret(owner, "opensesame")],
                owner.namespace,
            )
            # A master that was replaced finds the token in its pod and makes the rest again.
            await Creator(api, owner.uid, SystemClock()).provide(
                [*services(owner), network_policy(owner)], owner.namespace
            )
            words = (
                f"for i in $(seq 60); do echo {'x' * 80}; done; test $ELASTICDL_TOKEN ="
                " opensesame-worker-0 && exit 9"
            )
            await cluster.create(
                ProcessSpec(W0, ("/bin/sh", "-c", words), secrets={"ELASTICDL_TOKEN": ""})
            )
            async for event in cluster.observe():
                if isinstance(event, ProcessExited):
                    break
            await cluster.close()
            return lacking, event

    lacking, event = asyncio.run(life())
    assert lacking == ()
    assert event.exit_status.exit_code == 9 and len(event.exit_status.log_tail.splitlines()) == 60


@pytest.mark.parametrize(
    ("verb", "resource", "group"),
    ASKED,
    ids=[f"{verb}-{resource}" for verb, resource, _ in ASKED],
)
def test_a_right_that_is_missing_is_named(
    place: TargetCluster, namespace: str, account: Path, verb: str, resource: str, group: str
) -> None:
    take_away(place, namespace, verb, resource, group)

    async def ask() -> rights.Rights:
        async with connected(place, account) as api:
            return await taken_away(api, namespace)

    (lacking,) = asyncio.run(ask())
    assert (lacking.verb, lacking.resource, lacking.group) == (verb, resource, group)
    assert f"{verb} {resource}" in rights.in_words((lacking,), namespace)


def test_a_pod_that_may_not_be_made_is_refused_for_good_and_names_the_right(
    place: TargetCluster, owner: Owner, account: Path
) -> None:
    take_away(place, owner.namespace, "create", "pods")

    async def create() -> None:
        async with connected(place, account) as api:
            await taken_away(api, owner.namespace)
            cluster = KubernetesCluster(api, owner, lambda _: plan(place))
            try:
                await cluster.create(ProcessSpec(W0, ("/bin/sh",)))
            finally:
                await cluster.close()

    with pytest.raises(
        CreateRefused, match=f"elasticdl of namespace {owner.namespace} may not create pods"
    ) as refused:
        asyncio.run(create())
    assert not refused.value.retry
