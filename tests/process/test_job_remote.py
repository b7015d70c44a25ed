"""A job whose data, checkpoints and export are in an object store with latency, which is away for
some seconds while a worker is killed; then the job goes on elsewhere with other numbers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import Job, write_iris
from tests.object_store import SECRET, ObjectStore, serving

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
RECORDS = 150 * 80
AWAY_S = 4.0


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
        store.faults.latency_s = 0.02
        yield store


def start(store: ObjectStore, start_jobs: Callable[..., Job], *more: str, **flags: object) -> Job:
    return start_jobs(
        "train",
        *more,
        environment=store.environment(),
        model_def="iris",
        training_data="s3://bucket/data/part-*.csv",
        validation_data="s3://bucket/data/part-0.csv",
        minibatch_size=16,
        output="s3://bucket/export",
        checkpoint_dir="s3://bucket/checkpoints",
        checkpoint_steps=100,
        keep_checkpoint_max=2,
        **flags,
    )


@pytest.fixture(scope="module")
def remote(store: ObjectStore, start_jobs: Callable[..., Job]) -> Remote:
    first = start(store, start_jobs, num_workers=2, num_ps_pods=2)
    first.wait_until("some records are trained", lambda status: status["version"] > 30)
    store.faults.down = True
    back = threading.Timer(AWAY_S, lambda: setattr(store.faults, "down", False))
    back.start()
    first.kill_one("worker", random.Random(0))
    code, output = first.finish()
    back.join()
    assert code == 0, output + first.tails()
    # As on another machine: nothing of the job but what is in the store.
    second = start(store, start_jobs, "--resume", num_epochs=2, num_workers=1, num_ps_pods=1)
    second_code, second_output = second.finish()
    assert second_code == 0, second_output + second.tails()
    return Remote(store, first, second, (output, second_output))


def test_nothing_is_lost_though_a_worker_dies_and_the_store_is_away(remote: Remote) -> None:
    total = remote.first.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"]) == (RECORDS, RECORDS, 0)
    assert total["repeated"] <= 16


def test_it_goes_on_from_the_store_with_other_numbers(remote: Remote) -> None:
    epochs = remote.second.receipt()["epochs"]
    assert [(row["trained"], row["lost"]) for row in epochs] == [(RECORDS, 0), (RECORDS, 0)]
    assert remote.second.final("accuracy") > 0.9


def test_the_store_has_the_export_and_the_newest_checkpoints(remote: Remote) -> None:
    assert {"saved_model.pb", "model.weights.h5"} <= {
        key.removeprefix("export/") for key in remote.store.keys("export/")
    }
    manifests = [key for key in remote.store.keys("checkpoints/") if key.endswith("manifest.json")]
    assert len(manifests) == 2


def test_no_file_of_the_jobs_has_the_credentials(remote: Remote) -> None:
    folders = (remote.first.directory, remote.second.directory)
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    assert not any(SECRET in output for output in remote.outputs)
