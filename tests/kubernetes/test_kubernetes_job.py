"""A Job as it is submitted: its pod, with the rights of docker/rbac.yaml only, makes all the rest.

Nothing outlives it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from elasticdl.cluster.base import ProcessSpec
from elasticdl.cluster.kubernetes.job_objects import job
from elasticdl.cluster.kubernetes.labels import MASTER
from elasticdl.cluster.kubernetes.plans import Identity, Image, JobPlan, PodPlan
from tests.kubernetes.target_cluster import TargetCluster
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
LIMIT_S = 120.0
MASTER_PROGRAM = """
import asyncio, os
from elasticdl.cluster.kubernetes.apiserver import connect
from elasticdl.cluster.base import ProcessExited, ProcessName, ProcessSpec, Role
from elasticdl.clock import SystemClock
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.job_objects import network_policy, services, token_secret
from elasticdl.cluster.kubernetes.plans import MASTER_PORT, Image, Owner, PodPlan
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from elasticdl.cluster.kubernetes.rights import missing

WORKER = '''
import os, socket, time
def greeted(host, until_s=time.monotonic() + 30):
    # A Service leads nowhere for a moment after it was made.
    while True:
        try:
            with socket.create_connection((host, 50001), 10) as connection:
                return connection.recv(5) == b"hello"
        except OSError:
            if time.monotonic() > until_s: raise
            time.sleep(0.1)
assert os.environ["ELASTICDL_TOKEN"] == "opensesame, worker-0"
assert not os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount")
assert greeted("digits-master") and greeted("master-0.digits")
print("my address", socket.gethostbyname(socket.gethostname()), os.environ["ELASTICDL_POD_ADDRESS"])
raise SystemExit(7)
'''

async def greet(_, writer):
    writer.write(b"hello")
    writer.close()

async def main():
    api = await connect()
    names = ("NAMESPACE", "JOB_NAME", "JOB_UID")
    owner = Owner(*(os.environ[f"ELASTICDL_{name}"] for name in names))
    assert api.namespace == owner.namespace and await missing(api, owner.namespace) == ()
    assert not os.path.exists("/var/run/elasticdl/ELASTICDL_TOKEN")
    tokens = ProcessSecrets(api, owner, lambda name: f"opensesame, {name}")
    plan = PodPlan(Image(os.environ["IMAGE"]))
    cluster = KubernetesCluster(api, owner, lambda _: plan, secrets=tokens)
    token = token_secret(owner, "opensesame")
    objects = [token, *services(owner), network_policy(owner)]
    await Creator(api, owner.uid, SystemClock()).provide(objects, owner.namespace)
    server = await asyncio.start_server(greet, "0.0.0.0", MASTER_PORT)
    worker = ProcessName(Role.WORKER, 0)
    secrets = {"ELASTICDL_TOKEN": "it is in the Secret"}
    await cluster.create(ProcessSpec(worker, ("python3", "-c", WORKER), secrets=secrets))
    async for event in cluster.observe():
        print(event, flush=True)
        if isinstance(event, ProcessExited):
            break
    server.close()
    await api.close()
    assert event.exit_status.exit_code == 7, event

asyncio.run(main())
"""


def test_a_submitted_job_makes_its_processes_and_takes_all_of_them_with_it(
    place: TargetCluster, namespace: str, elasticdl_image: str
) -> None:
    rbac = (Path(__file__).parents[2] / "docker/rbac.yaml").read_text()
    place.kubectl("-n", namespace, "create", "-f", "-", text=rbac)
    plan = PodPlan(Image(elasticdl_image), identity=Identity("elasticdl"))
    spec = ProcessSpec(MASTER, ("python3", "-c", MASTER_PROGRAM), env={"IMAGE": elasticdl_image})
    place.kubectl(
        "create",
        "--validate=strict",
        "-f",
        "-",
        text=json.dumps(job(JobPlan(namespace, "digits", plan, failures=0), spec)),
    )
    ended = _ended(place, namespace)
    said = place.kubectl("-n", namespace, "logs", "job/digits")
    assert ended == "Complete", said
    assert _objects(place, namespace) == Counter(pods=2, services=2, secrets=2, networkpolicies=1)
    place.kubectl("-n", namespace, "delete", "job", "digits")
    until("nothing is left", lambda: not _objects(place, namespace), LIMIT_S, every_s=0.2)


def _objects(place: TargetCluster, namespace: str) -> Counter[str]:
    """How many of each kind the Job has."""
    chosen = "app.kubernetes.io/instance=digits"
    return Counter(
        kind
        for kind in ("pods", "services", "secrets", "networkpolicies")
        for _ in place.read(kind, namespace=namespace, selector=chosen)["items"]
    )


def _ended(place: TargetCluster, namespace: str) -> str:
    """The condition that a Job ends with."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        conditions = (
            place.read("jobs", "digits", namespace=namespace).get("status", {}).get("conditions")
            or ()
        )
        for condition in conditions:
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                return condition["type"]
        time.sleep(0.2)
    pods = place.kubectl("-n", namespace, "describe", "pods")
    raise AssertionError(f"the job did not end in {LIMIT_S:g} s:\n{pods}")
