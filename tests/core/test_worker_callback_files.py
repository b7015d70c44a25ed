"""CSVLogger and TensorBoard of a module: one whole file a job, whoever writes it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import UserError
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.tasks.callback_files import CallbackFiles
from elasticdl.worker.tasks.callbacks import JobCallbacks, Occasion
from elasticdl.worker.tasks.evaluation import PastRound
from tests.tensorboard import points

pytestmark = [pytest.mark.core, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Job:
    """Workers of one job, each with the callbacks that the module makes for it."""

    def __init__(
        self, job_dir: Path, make: Callable[..., Any], has_validation: bool = True
    ) -> None:
        self.job_dir, self.make, self.has_validation = job_dir, make, has_validation

    def worker(self, index: int) -> JobCallbacks:
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        files = CallbackFiles(self.job_dir, ProcessName(Role.WORKER, index), self.has_validation)
        occasion = Occasion(
            model, "/zoo", Outbox(), lambda _: None, self.has_validation, callback_files=files
        )
        callbacks = JobCallbacks([self.make()], occasion)
        callbacks.begin({"epochs": 3})
        return callbacks


def step(worker: JobCallbacks, epoch: int, loss: float) -> None:
    worker.before_step(Lease(Task.TRAINING, Shard(ShardId(0), "s", 0, 9), 1, epoch=epoch))
    worker.after_step(loss, 1)


def tell_round(worker: JobCallbacks, number: int, auc: float) -> None:
    worker.tested(Lease(Task.SUMMARY, None, 0, epoch=number, round=number), {"auc": auc})


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_with_validation_data_one_worker_writes_the_csv_of_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, lambda: keras.callbacks.CSVLogger("logs/history.csv"))
    first, second = job.worker(0), job.worker(1)
    for worker in (first, second):
        step(worker, 0, 0.5)
    tell_round(second, 0, 0.75)
    tell_round(second, 1, 0.875)
    for worker in (first, second):
        worker.end()
    found = rows(tmp_path / "logs/history.csv")
    assert [(row["epoch"], row["val_auc"], row["loss"]) for row in found] == [
        ("0", "0.75", "0.5"),
        ("1", "0.875", "0.5"),
    ]
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["history.csv"]


@pytest.mark.parametrize("append", [False, True])
def test_who_takes_over_continues_with_a_whole_csv(tmp_path: Path, append: bool) -> None:
    job = Job(tmp_path, lambda: keras.callbacks.CSVLogger("history.csv", append=append))
    lost = job.worker(0)
    step(lost, 0, 0.5)
    tell_round(lost, 0, 0.75)
    successor = job.worker(1)
    step(successor, 1, 0.25)
    successor.recall([PastRound(0, 0, {"auc": 0.75}, loss=0.5)])
    tell_round(successor, 1, 0.875)
    successor.end()
    lost.end()  # only for its file
    assert [(row["epoch"], row["val_auc"]) for row in rows(tmp_path / "history.csv")] == [
        ("0", "0.75"),
        ("1", "0.875"),
    ]


def test_without_validation_data_each_worker_writes_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path, lambda: keras.callbacks.CSVLogger("history.csv"), has_validation=False)
    for index, loss in ((0, 0.5), (3, 0.25)):
        worker = job.worker(index)
        step(worker, 0, loss)
        worker.end()
    assert [row["loss"] for row in rows(tmp_path / "history.csv")] == ["0.5"]
    assert [row["loss"] for row in rows(tmp_path / "history.worker-3.csv")] == ["0.25"]


def test_a_path_that_is_absolute_stays_where_it_is(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", lambda: keras.callbacks.CSVLogger(str(tmp_path / "mine.csv")))
    worker = job.worker(4)
    tell_round(worker, 0, 0.75)
    worker.end()
    assert [row["val_auc"] for row in rows(tmp_path / "mine.csv")] == ["0.75"]


def test_tensorboard_gets_the_curves_that_keras_writes_once_a_job(tmp_path: Path) -> None:
    job = Job(tmp_path, lambda: keras.callbacks.TensorBoard("board"))
    lost = job.worker(0)
    step(lost, 0, 0.5)
    tell_round(lost, 0, 0.75)
    successor = job.worker(1)
    step(successor, 1, 0.25)
    successor.recall([PastRound(0, 0, {"auc": 0.75}, loss=0.5)])
    tell_round(successor, 1, 0.875)
    successor.end()
    lost.end()  # only for its files
    assert points(tmp_path / "board/validation") == [
        (0, "epoch_auc", 0.75),
        (1, "epoch_auc", 0.875),
    ]
    training = points(tmp_path / "board/train")
    assert [point for point in training if point[1] == "epoch_loss"] == [
        (0, "epoch_loss", 0.5),
        (1, "epoch_loss", 0.25),
    ]


def test_without_validation_data_each_worker_is_a_run_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path, lambda: keras.callbacks.TensorBoard("board"), has_validation=False)
    for index in (0, 2):
        worker = job.worker(index)
        step(worker, 0, 0.5)
        worker.end()
    assert (
        points(tmp_path / "board/train")
        == points(tmp_path / "board/worker-2/train")
        == [(0, "epoch_loss", 0.5)]
    )


def test_an_error_names_the_callback_that_the_module_gave(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    job = Job(tmp_path, lambda: keras.callbacks.CSVLogger("folder.csv"))
    with pytest.raises(UserError, match=r"CSVLogger\.on_epoch_end raised IsADirectoryError"):
        tell_round(job.worker(0), 0, 0.5)
