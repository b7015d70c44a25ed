"""Parameter servers of jobs are killed in their containers, evicted and lost. No update is lost."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from model_zoo import make_data
from tests import object_store
from tests.kubernetes.cluster.node import NODE_ADDRESS
from tests.kubernetes.faults import delete_by_force, evict, kill, kubectl
from tests.kubernetes.jobs import DATA, JOB_LIMIT_S, Job, Jobs, until_seen
from tests.object_store import ObjectStore
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
STEP_LIMIT_S = 120.0


def test_a_server_that_is_killed_or_evicted_loses_no_update(jobs: Jobs) -> None:
    jobs.make_data("digits")
    job = jobs.submit(
        "servers",
        model_def="counted",
        training_data=f"{DATA}/digits/train.npz",
        validation_data=f"{DATA}/digits/test.npz",
        num_epochs=30,
        minibatch_size=32,
        num_workers=2,
        num_ps_pods=1,
        checkpoint_seconds=0,
        envs=f"PACED_FOLDER={DATA}",
    )
    job.until_workers(2)
    job.continues()
    before = pods(job)
    assert len(before) == 4, before

    # The node starts the first container at once, and the next one after 10 s.
    for incarnation in (1, 2):
        kill(job, job.pod("ps-0"), "ps")
        took_over(job, f"ps-0.{incarnation}")
        same = {**before, "servers-ps-0": (before["servers-ps-0"][0], incarnation)}
        # The node writes the pod's status some time after it has started the container.
        until_seen("the node shows the restart", partial(shows, job, same), STEP_LIMIT_S)

    evict(job, "ps-0.2", pod=job.pod("ps-0"))
    took_over(job, "ps-0.3")
    after = {name: pod for name, pod in pods(job).items() if "-ps-" not in name}
    assert after == {name: pod for name, pod in before.items() if "-ps-" not in name}

    causes = {"ps-0": "infrastructure", "ps-0.1": "infrastructure", "ps-0.2": "evicted"}
    assert job.causes(causes) == causes, job.story()
    assert job.status()["updates"]["lost"] == 0, job.story()
    (jobs.folder / "hurry").touch()
    job.done()
    total = job.receipt()
    assert total["repeated"] == 0, job.story()
    assert job.metrics()["count"] == total["trained"], "the weights have each record once"


def test_a_server_that_is_lost_restores_its_part_from_an_object_store(
    jobs: Jobs, tmp_path: Path
) -> None:
    """A job without a volume, as docs/how-to/object-stores.md has it: its data and its checkpoints
    are in a store, which its pods reach at the node's address.
    """
    make_data.MAKERS["digits"](tmp_path, 0)
    with object_store.serving(NODE_ADDRESS) as store:
        for name in ("train.npz", "test.npz"):
            store.put(f"digits/{name}", (tmp_path / name).read_bytes())
        job = without_a_volume(jobs, store)
        until("a checkpoint is complete", lambda: manifests(store), JOB_LIMIT_S, context=job.story)
        before, asked = pods(job), len(store.requests)
        delete_by_force(job, job.pod("ps-0"))
        began_with = manifests(store)
        until(
            "one is taken with the next server",
            lambda: set(manifests(store)) - set(began_with) and reads(store, asked),
            JOB_LIMIT_S,
            context=job.story,
        )
        kept = {name: pod for name, pod in before.items() if "-ps-" not in name}
        assert kept.items() <= pods(job).items(), job.story()
        kubectl(job, "exec", job.pod("worker-0"), "--", "touch", "/tmp/hurry")
        done = jobs.elasticdl("wait", job.name, "-o", "json", limit_s=JOB_LIMIT_S)
    assert done.returncode == 0, f"{done.stderr}\n{job.story()}"
    outcome = json.loads(done.stdout)
    receipt = outcome["receipt"]
    total, updates = receipt["total"], receipt["updates"]
    assert (total["trained"], total["lost"]) == (total["expected"], 0), receipt
    assert (updates["lost"], updates["repeated"]) == (0, 0), receipt
    assert outcome["metrics"]["count"] == total["trained"], "the weights have each record once"


def without_a_volume(jobs: Jobs, store: ObjectStore) -> Job:
    credentials = (
        f"[default]\naws_access_key_id={object_store.KEY}\n"
        f"aws_secret_access_key={object_store.SECRET}\n"
    )
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-credentials"}}
    jobs.place.create(secret | {"stringData": {"credentials": credentials}}, jobs.namespace)
    mounted = {"source": {"secret": {"secretName": "s3-credentials"}}, "mount_path": "/credentials"}
    environment = {
        "AWS_SHARED_CREDENTIALS_FILE": "/credentials/credentials",
        "AWS_ENDPOINT_URL": store.address,
        "AWS_REGION": "us-east-1",
        "PACED_FOLDER": "/tmp",
    }
    return jobs.submit(
        "stored",
        "--no-sync",
        model_def="counted",
        training_data="s3://bucket/digits/train.npz",
        validation_data="s3://bucket/digits/test.npz",
        num_epochs=4,
        minibatch_size=32,
        num_workers=1,
        num_ps_pods=1,
        job_dir="/tmp/job",
        checkpoint_dir="s3://bucket/stored/checkpoints",
        checkpoint_steps=10,
        volume=json.dumps([mounted]),
        envs=";".join(f"{name}={value}" for name, value in environment.items()),
    )


def reads(store: ObjectStore, since: int) -> list[str]:
    """Requests after the first `since` ones that read a server's part of a checkpoint."""
    return [
        request
        for request in store.requests[since:]
        if re.search("^GET .*/server-0-of-1-", request)
    ]


def manifests(store: ObjectStore) -> list[str]:
    """Those of complete checkpoints."""
    return [key for key in store.keys("stored/checkpoints/") if key.endswith("manifest.json")]


def took_over(job: Job, process: str) -> None:
    """Wait until a server has the updates of the one before, and workers train with it."""
    said = job.until(
        f"{process} serves",
        lambda events: [
            event["text"]
            for event in events
            if event["process"] == process and event["kind"] == "server"
        ],
        STEP_LIMIT_S,
    )
    assert "no update of its part was lost" in said[0], job.story()
    job.continues()


def shows(job: Job, wanted: dict[str, tuple[str, int]]) -> bool:
    return pods(job) == wanted


def pods(job: Job) -> dict[str, tuple[str, int]]:
    """Uid of each pod that runs, and how many containers it had before the present one."""
    found: list[dict[str, Any]] = job.jobs.place.read("pods", namespace=job.jobs.namespace)["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in found
        if pod["status"]["phase"] == "Running"
    }
