"""Masters of one job end in every way that a cluster has for them. The job's other processes run
on, and the next master continues with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import pytest

from elasticdl.cluster.kubernetes.job_accounting import FINALIZER
from elasticdl.errors import ExitCode
from tests.kubernetes.faults import (
    delete_by_force,
    evict_pod,
    kill_master,
    lose_node,
    master,
    name_of,
    processes,
)
from tests.kubernetes.jobs import DATA, STEP_LIMIT_S, Job, Jobs, until_seen
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]


@pytest.mark.usefixtures("two_fake_nodes")
def test_masters_end_in_every_way_and_nothing_else_restarts(jobs: Jobs) -> None:
    jobs.make_data("digits")
    job = jobs.submit(
        "masters",
        model_def="counted",
        training_data=f"{DATA}/digits/train.npz",
        validation_data=f"{DATA}/digits/test.npz",
        num_epochs=50,
        minibatch_size=32,
        num_workers=2,
        num_ps_pods=1,
        envs=f"PACED_FOLDER={DATA}",
    )
    killed_in_the_check(job)
    job.until_workers(2)
    job.until("training has begun", lambda _: job.progress() > 0)
    before = processes(job)
    assert len(before) == 3
    for end in (delete_by_force, kill_master, evict_pod, lose_node):
        taken_over(job, end)
        assert processes(job) == before, job.story()
    taken_over_by_a_second_master(job)
    assert processes(job) == before, job.story()
    taken_over(job, kill_in_a_hurry)
    job.done()
    total = job.receipt()
    assert total["repeated"] == 0, job.story()
    assert job.metrics()["count"] == total["trained"], "the weights have each record once"
    texts = [event["text"] for event in job.events()]
    assert not [text for text in texts if "resumes from" in text or "starts over" in text]
    status = jobs.place.read("jobs", job.name, namespace=jobs.namespace)["status"]
    assert (status["succeeded"], status.get("failed", 0)) == (1, 1), "only the one in the check"


@pytest.mark.parametrize(
    "strategy, holders",
    [
        ("ParameterServerStrategy", ["ps-0", "ps-1"]),
        ("AllreduceStrategy", ["worker-0", "worker-1"]),
    ],
)
def test_a_job_without_a_volume_is_taken_over_from_the_copies_of_its_journal(
    jobs: Jobs, strategy: str, holders: list[str]
) -> None:
    """Its directory ends with each master's pod: only the data are on a volume."""
    jobs.make_data("digits")
    servers = len(holders) if strategy == "ParameterServerStrategy" else 0
    job = jobs.submit(
        f"copies-{holders[0].partition('-')[0]}",
        *(["--no-sync"] if servers else []),
        model_def="paced",
        distribution_strategy=strategy,
        training_data=f"{DATA}/digits/train.npz",
        job_dir="/tmp/job",
        num_epochs=6,
        minibatch_size=32,
        num_workers=2,
        num_ps_pods=servers,
        envs=f"PACED_FOLDER={DATA}",
    )
    with StatusWatch(job) as status:
        until("it trains", status.continues, STEP_LIMIT_S, every_s=0.2, context=job.story)
        until_seen("all run", lambda: len(processes(job)) == 2 + servers, STEP_LIMIT_S)
        until_seen("copies are on record", lambda: on_record(job) == holders, STEP_LIMIT_S)
        before = processes(job)
        # That masters end in several ways need not be seen with a ring, too.
        for end in (kill_master, delete_by_force) if servers else (kill_master,):
            status.taken_over(end, len(before))
            assert processes(job) == before, job.story()
            until_seen("copies are on record", lambda: on_record(job) == holders, STEP_LIMIT_S)
        # The master of now has counted what is repeated.
        until("it goes on", status.continues, STEP_LIMIT_S, every_s=0.2, context=job.story)
        (jobs.folder / "hurry").touch()
        code, said = job.wait(400.0)
    assert code == 0, f"{said}\n{job.story()}"
    assert status.repeated == 0


class StatusWatch:
    """What the masters of a job tell, whose directory nobody but they can read."""

    def __init__(self, job: Job) -> None:
        self._job, self._trained, self.repeated = job, 0, 0
        self._watch = job.watch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()

    def continues(self) -> bool:
        """Whether more records are trained than when it was last asked."""
        if (status := self._watch.newest()) is None:
            return False
        before, self._trained = self._trained, max(self._trained, status["records"]["trained"])
        self.repeated = status["records"]["repeated"]
        return self._trained > before

    def taken_over(self, end: Callable[[Job, str], None], running: int) -> None:
        """End the master; wait until another one has continued with all processes."""
        job, first = self._job, name_of(master(self._job))
        until_seen("its end does not count", lambda: not _is_counted(job, first), STEP_LIMIT_S)
        end(job, first)
        until_seen(
            "the Job has another master", lambda: name_of(master(job)) != first, STEP_LIMIT_S
        )
        text = f"; {running} processes kept running"
        until_seen("it continues", lambda: text in self._log(), STEP_LIMIT_S, context=job.story)
        self._watch.forget()
        until("it tells", self._tells, STEP_LIMIT_S, every_s=0.2, context=job.story)
        # What the master before had trained since it was last asked is no progress of this one.
        self.continues()
        until("training continues", self.continues, STEP_LIMIT_S, every_s=0.2, context=job.story)

    def _tells(self) -> bool:
        """Whether a master has answered: without one the command prints zeros and no phase."""
        status = self._watch.newest()
        return status is not None and status["phase"] is not None

    def _log(self) -> str:
        pod = name_of(master(self._job))
        try:
            path = f"/api/v1/namespaces/{self._job.jobs.namespace}/pods/{pod}/log"
            return self._job.jobs.place.call("GET", path)
        except RuntimeError:
            return ""  # It has not started yet.


def on_record(job: Job) -> list[str]:
    """The processes that have copies of the journal, by the job's Lease."""
    lease = job.jobs.place.read("leases", f"{job.name}-master", namespace=job.jobs.namespace)
    (text,) = [
        text
        for key, text in lease["metadata"]["annotations"].items()
        if key.endswith("journal-copies")
    ] or ["[]"]
    return sorted(name for name, _ in json.loads(text))


def killed_in_the_check(job: Job) -> None:
    """Nothing has begun: the next master starts the check again, after the Job's pause of 10 s."""
    check = f"{job.name}-check-1"
    until_seen("the check runs", lambda: check in names(job, "pods"), STEP_LIMIT_S)
    kill_master(job, master(job)["metadata"]["name"])


def taken_over(job: Job, end: Callable[[Job, str], None]) -> None:
    """End the master; wait until the next one has continued with all processes."""
    earlier, first = len(takeovers(job.events())), master(job)["metadata"]["name"]
    until_seen("its end does not count", lambda: not _is_counted(job, first), STEP_LIMIT_S)
    began_s = time.monotonic()
    end(job, first)
    event = job.until(
        f"another master continues after {end.__name__}",
        lambda events: takeovers(events)[earlier:],
        STEP_LIMIT_S,
    )[0]
    assert "; 3 processes kept running" in event["text"], job.story()
    job.continues()
    took_s = time.monotonic() - began_s
    print(f"{end.__name__}: training seen {took_s:.1f} s later; {event['text']}")


def kill_in_a_hurry(job: Job, master: str) -> None:
    """When workers ask for leases all the time."""
    (job.jobs.folder / "hurry").touch()
    kill_master(job, master)


def taken_over_by_a_second_master(job: Job) -> None:
    """Somebody copies the pod. Each master leaves when another asks it to: never do two act."""
    second = f"{job.name}-second"
    first = name_of(master(job))
    taken_over(job, _copy)
    for pod in (first, second):
        until_seen(f"{pod} has left", partial(_has_left, job, pod), STEP_LIMIT_S, context=job.story)
        assert _exit_code(job, pod) == ExitCode.SUPERSEDED, job.story()
    job.continues()


def _copy(job: Job, first: str) -> None:
    place, namespace = job.jobs.place, job.jobs.namespace
    pod = place.read("pods", first, namespace=namespace)
    labels = pod["metadata"]["labels"]
    for key in [key for key in labels if "controller-uid" in key or "job-name" in key]:
        # The Job would take the copy for one of its own, and end one of the two.
        del labels[key]
    (owner,) = pod["metadata"]["ownerReferences"]
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    own = {"ELASTICDL_JOB_UID": owner["uid"], "ELASTICDL_JOB_NAME": job.name}
    for variable in spec["containers"][0]["env"]:
        if variable["name"] in own:
            variable.pop("valueFrom", None)
            variable["value"] = own[variable["name"]]
    metadata = {
        "name": f"{job.name}-second",
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [{**owner, "controller": False, "blockOwnerDeletion": False}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    place.create(body)


def takeovers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        event for event in events if event["text"].startswith("another master continues the job")
    ]


def names(job: Job, kind: str) -> list[str]:
    return [
        name_of(item) for item in job.jobs.place.read(kind, namespace=job.jobs.namespace)["items"]
    ]


def _is_counted(job: Job, pod: str) -> bool:
    metadata = job.jobs.place.read("pods", pod, namespace=job.jobs.namespace)["metadata"]
    return FINALIZER in metadata.get("finalizers", [])


def _has_left(job: Job, pod: str) -> bool:
    return _exit_code(job, pod) is not None


def _exit_code(job: Job, pod: str) -> int | None:
    read = job.jobs.place.read("pods", pod, namespace=job.jobs.namespace)
    (container,) = read["status"]["containerStatuses"]
    ended = container["state"].get("terminated")
    return None if ended is None else int(ended["exitCode"])
