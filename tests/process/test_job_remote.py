"""A job whose data, checkpoints and exports are in an object store with latency, which answers 503
for some seconds while a worker, a server and the master are killed; then the job goes on elsewhere
with other numbers. `ELASTICDL_STORE_AWAY_S=30` makes it half a minute.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import Job, write_iris
from tests.object_store import SECRET, ObjectStore, serving

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
RECORDS = 150 * 80
EPOCHS = 4
AWAY_S = float(os.environ.get("ELASTICDL_STORE_AWAY_S", "4"))


@dataclass(frozen=True)
class Remote:
    store: ObjectStore
    first: Job
    second: Job
    outputs: tuple[str, str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    data = write_iris(tmp_path_factory.mktemp("data") / "iris.csv", 40).read_bytes()
    with serving() as store:
        for part in range(2):
            store.put(f"data/part-{part}.csv", data)
        # Slow until the first export is there, so that training outlasts it on any machine.
        store.faults.latency_s = 0.3
        yield store


def start(store: ObjectStore, start_jobs: Callable[..., Job], *more: str, **flags: object) -> Job:
    return start_jobs(
        "train",
        *more,
        environment=store.environment(),
        model_def="iris",
        training_data="s3://bucket/data/part-*.csv",
        validation_data="s3://bucket/data/part-0.csv",
        minibatch_size=32,
        output="s3://bucket/export",
        export_seconds=2,
        keep_export_max=2,
        checkpoint_dir="s3://bucket/checkpoints",
        checkpoint_steps=200,
        keep_checkpoint_max=2,
        **flags,
    )


def exports(store: ObjectStore) -> list[int]:
    """The numbers of complete exports."""
    keys = (key.removeprefix("export/").partition("/") for key in store.keys("export/"))
    return sorted(int(number) for number, _, name in keys if name == "saved_model.pb")


@pytest.fixture(scope="module")
def remote(store: ObjectStore, start_jobs: Callable[..., Job]) -> Remote:
    first = start(store, start_jobs, num_epochs=EPOCHS, num_workers=2, num_ps_pods=2)
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
    # As on another machine: nothing of the job but what is in the store.
    second = start(
        store, start_jobs, "--resume", num_epochs=EPOCHS + 1, num_workers=1, num_ps_pods=1
    )
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
    assert total["repeated"] <= 32


def test_it_goes_on_from_the_store_with_other_numbers(remote: Remote) -> None:
    epochs = remote.second.receipt()["epochs"]
    assert [(row["trained"], row["lost"]) for row in epochs] == [(RECORDS, 0)] * (EPOCHS + 1)
    assert remote.second.final("accuracy") > 0.9


def test_the_store_has_the_newest_exports_and_checkpoints(remote: Remote) -> None:
    told = [
        int(one["text"].rpartition("/")[2])
        for job in (remote.first, remote.second)
        for one in job.events()
        if one["text"].startswith("exported: s3://bucket/export/")
    ]
    assert told == sorted(set(told)) and exports(remote.store) == told[-2:]
    newest = f"export/{told[-1]}/"
    assert {"saved_model.pb", "model.weights.h5", "variables/variables.index"} <= {
        key.removeprefix(newest) for key in remote.store.keys(newest)
    }
    manifests = [key for key in remote.store.keys("checkpoints/") if key.endswith("manifest.json")]
    assert len(manifests) == 2


def test_the_time_of_exports_is_in_the_account_of_time(remote: Remote) -> None:
    spent = remote.first.receipt()["goodput"]["spent"]
    assert "checkpoint.export" in {f"{one['kind']}.{one['cause']}" for one in spent}


def test_no_file_of_the_jobs_has_the_credentials(remote: Remote) -> None:
    folders = (remote.first.directory, remote.second.directory)
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    assert not any(SECRET in output for output in remote.outputs)
