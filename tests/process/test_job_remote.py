"""A job whose data, directory, checkpoints and exports are in an object store with latency, which
answers 503 for some seconds while a worker, a server and the master are killed. Then the job goes
on at another address of the bucket, as on another machine, with fewer servers.
`ELASTICDL_STORE_AWAY_S=30` makes it half a minute.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elasticdl.cli.main import run
from elasticdl.jobdir.working_directory import WorkingDirectory
from tests.conftest import Job, write_iris
from tests.object_store import SECRET, ObjectStore, reached, serving

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
RECORDS = 150 * 40
EPOCHS, MINIBATCH = 4, 64
FIRST, SECOND = "s3://bucket/jobs/first", "s3://bucket/jobs/second"
AWAY_S = float(os.environ.get("ELASTICDL_STORE_AWAY_S", "4"))


@dataclass(frozen=True)
class Remote:
    store: ObjectStore
    first: Job
    second: Job
    outputs: tuple[str, str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    data = write_iris(tmp_path_factory.mktemp("data") / "iris.csv", 20).read_bytes()
    with serving() as store:
        for part in range(2):
            store.put(f"data/part-{part}.csv", data)
        # Slow until the first export is there, so that training outlasts it on any machine.
        store.faults.latency_s = 0.3
        yield store


def start(
    store: ObjectStore,
    start_jobs: Callable[..., Job],
    cache: Path,
    address: str,
    *more: str,
    **flags: object,
) -> Job:
    """A job at an address, on the machine with this cache."""
    environment = {**store.environment(), "ELASTICDL_CACHE_DIR": str(cache)}
    job = start_jobs("train", *more, environment=environment, job_dir=address, **flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTICDL_CACHE_DIR", str(cache))
        job.directory = WorkingDirectory.of(address).job.path
    return job


def exports(store: ObjectStore) -> list[int]:
    """The numbers of complete exports."""
    keys = (key.removeprefix("export/").partition("/") for key in store.keys("export/"))
    return sorted(int(number) for number, _, name in keys if name == "saved_model.pb")


@pytest.fixture(scope="module")
def remote(
    store: ObjectStore, start_jobs: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory
) -> Remote:
    caches = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    first = start(
        store,
        start_jobs,
        caches[0],
        FIRST,
        "--no-sync",
        model_def="iris",
        training_data="s3://bucket/data/part-*.csv",
        validation_data="s3://bucket/data/part-0.csv",
        minibatch_size=MINIBATCH,
        output="s3://bucket/export",
        export_seconds=2,
        keep_export_max=2,
        checkpoint_steps=50,
        keep_checkpoint_max=2,
        num_epochs=EPOCHS,
        num_workers=1,
        num_ps_pods=2,
    )
    status = first.wait_until("an export is there", lambda status: bool(exports(store)))
    assert status["phase"] == "working"
    store.faults.down, store.faults.latency_s, choose = True, 0.02, random.Random(0)
    back = threading.Timer(AWAY_S, lambda: setattr(store.faults, "down", False))
    back.start()
    for role in ("worker", "ps", "master"):
        first.kill(role, choose)
    code, output = first.finish()
    back.join()
    assert code == 0, output + first.tails()
    for key in store.keys("jobs/first/"):
        store.put(key.replace("jobs/first/", "jobs/second/"), store.get(key))
    # As on another machine: nothing of the job but what is in the store.
    flags = ("-f", f"{SECOND}/job.yaml", "--resume")
    numbers = {"num_epochs": EPOCHS + 1, "num_ps_pods": 1}
    second = start(store, start_jobs, caches[1], SECOND, *flags, **numbers)
    second_code, second_output = second.finish()
    assert second_code == 0, second_output + second.tails()
    return Remote(store, first, second, (output, second_output))


def test_nothing_is_lost_though_each_role_is_killed_and_the_store_is_away(remote: Remote) -> None:
    total = remote.first.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"]) == (
        EPOCHS * RECORDS,
        EPOCHS * RECORDS,
        0,
    )
    assert total["repeated"] <= MINIBATCH


def test_it_continues_from_the_store_with_fewer_servers(remote: Remote) -> None:
    epochs = remote.second.receipt()["epochs"]
    assert [(row["trained"], row["lost"]) for row in epochs] == [(RECORDS, 0)] * (EPOCHS + 1)
    assert remote.second.final("accuracy") > 0.9


def test_the_store_has_the_newest_exports_and_checkpoints(remote: Remote) -> None:
    told = [
        int(event["text"].rpartition("/")[2])
        for event in remote.second.events()  # They begin with those of the first job.
        if event["text"].startswith("exported: s3://bucket/export/")
    ]
    assert told == sorted(set(told)) and exports(remote.store) == told[-2:]
    newest = f"export/{told[-1]}/"
    assert {"saved_model.pb", "model.weights.h5", "variables/variables.index"} <= {
        key.removeprefix(newest) for key in remote.store.keys(newest)
    }
    kept = remote.store.keys("jobs/second/checkpoints/")
    assert len([key for key in kept if key.endswith("manifest.json")]) == 2


def test_the_store_has_the_files_of_the_jobs(
    remote: Remote,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for job, folder in ((remote.first, "jobs/first"), (remote.second, "jobs/second")):
        for name in ("receipt.json", "events.jsonl", "metrics.jsonl", "report.html", "status.json"):
            assert remote.store.get(f"{folder}/{name}") == (job.directory / name).read_bytes()
        keys = remote.store.keys(f"{folder}/")
        assert {f"{folder}/logs/{name}.log" for name in ("master-0", "worker-0", "ps-0")} <= {*keys}
        assert any(key.startswith(f"{folder}/journal/") for key in keys)
        assert not {f"{folder}/master.json", f"{folder}/supervisor.json"} & {*keys}
    # The events of the first job came along.
    assert remote.second.events()[0] == remote.first.events()[0]
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path))
    with reached(remote.store):
        assert run(["status", SECOND, "-o", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["state"], shown["records"]["trained"]) == ("done", (EPOCHS + 1) * RECORDS)
        assert run(["why", SECOND]) == 0 and "killed" in capsys.readouterr().out
        assert run(["checkpoints", "verify", SECOND]) == 0
        assert capsys.readouterr().out.count("intact") == 2
        assert run(["checkpoints", "list", SECOND, "-o", "json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert listed[0]["trained"] == (EPOCHS + 1) * RECORDS


def test_the_time_of_exports_is_in_the_account_of_time(remote: Remote) -> None:
    spent = remote.first.receipt()["goodput"]["spent"]
    assert "checkpoint.export" in {f"{one['kind']}.{one['cause']}" for one in spent}


def test_no_file_of_the_jobs_has_the_credentials(remote: Remote) -> None:
    folders = (remote.first.directory, remote.second.directory)
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    assert not any(SECRET in output for output in remote.outputs)
