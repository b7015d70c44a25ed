"""Keras callbacks of a module, at the moments of a distributed job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from elasticdl.errors import PermanentError, UserError
from elasticdl.model.callbacks import LearningRateScheduler, MaxStepsStopping, SavedModelExporter
from elasticdl.model.optimizer_view import OptimizerView
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.tasks.callbacks import JobCallbacks, Occasion
from elasticdl.worker.tasks.evaluation import PastRound, past_of, states_of

pytestmark = pytest.mark.core


class Diary(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[Any, ...]] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.entries.append(("train begins", self.params["epochs"], self.model is not None))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.entries.append(("epoch begins", epoch))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.entries.append(("batch begins", batch))

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.entries.append(("batch ends", batch, logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.entries.append(("epoch ends", epoch, logs))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.entries.append(("test begins",))

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        self.entries.append(("test ends", logs))

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self.entries.append(("train ends", logs))


class Stage:
    """What callbacks are given."""

    def __init__(
        self,
        *callbacks: keras.callbacks.Callback,
        has_validation: bool = False,
        training: bool = True,
    ) -> None:
        inputs = keras.Input((1,))
        self.outbox = Outbox()
        self.refreshed: list[Lease] = []
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        self.callbacks = JobCallbacks(
            callbacks,
            Occasion(model, "/zoo", self.outbox, self.refreshed.append, has_validation, training),
        )

    def step(self, epoch: int, loss: float | None = 1.0, version: int = 0) -> None:
        self.callbacks.before_step(
            Lease(Task.TRAINING, Shard(ShardId(0), "s", 0, 9), 1, epoch=epoch)
        )
        self.callbacks.after_step(loss, version)

    def stop_asked(self) -> str:
        return self.outbox.take({}).stop_asked


SUMMARY = Lease(Task.SUMMARY, None, 0, epoch=1, round=0)


def summary(number: int) -> Lease:
    return replace(SUMMARY, round=number)


def test_without_validation_data_an_epoch_ends_when_the_next_begins_and_at_the_end() -> None:
    diary = Diary()
    stage = Stage(diary)
    stage.callbacks.begin({"epochs": 2})
    for epoch, loss in ((0, 1.0), (0, 3.0), (1, 5.0)):
        stage.step(epoch, loss)
    stage.callbacks.end()
    assert diary.entries == [
        ("train begins", 2, True),
        ("epoch begins", 0),
        ("batch begins", 0),
        ("batch ends", 0, {"loss": 1.0}),
        ("batch begins", 1),
        ("batch ends", 1, {"loss": 3.0}),
        ("epoch ends", 0, {"loss": 2.0}),
        ("epoch begins", 1),
        ("batch begins", 2),
        ("batch ends", 2, {"loss": 5.0}),
        ("epoch ends", 1, {"loss": 5.0}),
        ("train ends", {"loss": 5.0}),
    ]


def test_with_validation_data_an_epoch_ends_with_the_values_of_a_round() -> None:
    diary = Diary()
    stage = Stage(diary, has_validation=True)
    stage.callbacks.begin({"epochs": 1})
    stage.step(1, 2.0)
    assert not stage.callbacks.tested(SUMMARY, {"loss": 0.5, "auc": 0.9})
    stage.callbacks.end()
    assert diary.entries[-4:] == [
        ("test begins",),
        ("test ends", {"loss": 0.5, "auc": 0.9}),
        ("epoch ends", 1, {"loss": 2.0, "val_loss": 0.5, "val_auc": 0.9}),
        ("train ends", {"loss": 2.0}),
    ]
    assert stage.refreshed == [SUMMARY], "the model has the round's weights when its callbacks look"


def test_early_stopping_ends_the_training_after_its_patience() -> None:
    stage = Stage(
        keras.callbacks.EarlyStopping(monitor="val_auc", mode="max", patience=1),
        has_validation=True,
    )
    stage.callbacks.begin({"epochs": 9})
    told = [
        stage.callbacks.tested(summary(number), {"auc": auc})
        for number, auc in enumerate((0.5, 0.6, 0.4, 0.3))
    ]
    assert told == [False, False, True, True]


def test_a_worker_that_takes_over_counts_on_from_the_rounds_before() -> None:
    stage = Stage(
        keras.callbacks.EarlyStopping(monitor="val_auc", mode="max", patience=2),
        has_validation=True,
    )
    stage.callbacks.begin({"epochs": 9})
    before = [PastRound(number, 0, {"auc": auc}, loss=1.0) for number, auc in enumerate((0.9, 0.5))]
    stage.callbacks.recall(before)
    assert stage.callbacks.tested(summary(2), {"auc": 0.6}), (
        "the second round in a row that is no better than 0.9"
    )


def test_rounds_that_a_worker_was_told_are_not_told_again() -> None:
    diary = Diary()
    stage = Stage(diary, has_validation=True)
    stage.callbacks.begin({"epochs": 1})
    assert not stage.callbacks.tested(summary(0), {"auc": 0.9})
    assert not stage.callbacks.tested(summary(0), {"auc": 0.9})
    for _ in range(2):
        stage.callbacks.recall(
            [PastRound(0, 0, {"auc": 0.9}), PastRound(1, 0, {"auc": 0.8}, loss=0.25)]
        )
    assert [entry for entry in diary.entries if entry[0] == "epoch ends"] == [
        ("epoch ends", 1, {"val_auc": 0.9}),
        ("epoch ends", 0, {"val_auc": 0.8, "loss": 0.25}),
    ]


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # of Keras' own saving
def test_the_model_of_a_round_that_is_over_is_not_saved_but_its_value_counts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "best.keras"
    saver = keras.callbacks.ModelCheckpoint(
        path, monitor="val_auc", mode="max", save_best_only=True
    )
    stage = Stage(saver, has_validation=True)
    stage.callbacks.begin({"epochs": 9})
    stage.callbacks.recall([PastRound(0, 0, {"auc": 0.9})])
    assert not path.exists() and saver.best == 0.9
    stage.callbacks.tested(summary(1), {"auc": 0.8})
    assert not path.exists()
    stage.callbacks.tested(summary(2), {"auc": 0.95})
    assert path.exists()


def test_the_rounds_before_come_with_a_summary_lease() -> None:
    payload = (
        '{"metrics": {}, "history": [{"round": 3, "epoch": 1, "values": {"auc": 0.5}, "loss":'
        " null}]}"
    )
    assert past_of(payload) == (PastRound(3, 1, {"auc": 0.5}),)
    assert past_of('{"metrics": {}}') == ()
    with pytest.raises(PermanentError, match="earlier rounds"):
        past_of('{"history": [{}]}')


def test_stop_training_set_in_a_batch_is_asked_for_once() -> None:
    class Stopper(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            self.model.stop_training = batch >= 1

    stage = Stage(Stopper())
    stage.callbacks.begin({})
    stage.step(0)
    assert stage.stop_asked() == ""
    stage.step(0)
    assert "stop_training" in stage.stop_asked()
    stage.step(0)
    assert stage.stop_asked() == ""


def test_max_steps_stopping_goes_by_the_version_of_the_model() -> None:
    stage = Stage(
        MaxStepsStopping(10), LearningRateScheduler(lambda version: 0.1), SavedModelExporter()
    )
    stage.callbacks.begin({})
    stage.step(0, version=9)
    assert stage.stop_asked() == ""
    stage.step(0, version=10)
    assert "10 of 10" in stage.stop_asked()


def test_lambda_callbacks_get_their_batches() -> None:
    seen: list[float] = []
    stage = Stage(
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
        )
    )
    stage.callbacks.begin({})
    stage.step(0, 4.0)
    stage.step(0, None)
    assert seen == [4.0]


def test_an_error_of_a_callback_names_it() -> None:
    class Broken(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            raise KeyError("accuracy")

    stage = Stage(Broken())
    with pytest.raises(UserError, match=r"Broken.on_epoch_begin raised KeyError"):
        stage.step(0)


def test_a_callback_that_ends_the_process_is_an_error_of_the_module() -> None:
    class Leaves(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            sys.exit(0)

    stage = Stage(Leaves())
    with pytest.raises(UserError, match=r"Leaves.on_train_batch_end called exit\(0\)"):
        stage.step(0)


def test_merged_states_come_out_of_a_summary_lease() -> None:
    assert states_of('{"round": 1, "metrics": {"auc": [[1, 2], [3.5]]}}') == {
        "auc": ((1.0, 2.0), (3.5,))
    }


@pytest.mark.parametrize(
    "payload", ["", "[]", "{}", '{"metrics": {"auc": 1}}', '{"metrics": {"auc": [["x"]]}}']
)
def test_a_payload_that_is_none_is_refused(payload: str) -> None:
    with pytest.raises(PermanentError, match="summary lease"):
        states_of(payload)


def test_a_job_that_only_evaluates_has_tests_only() -> None:
    diary = Diary()
    stage = Stage(diary, has_validation=True, training=False)
    stage.callbacks.begin({"epochs": 1})
    assert not stage.callbacks.tested(SUMMARY, {"auc": 0.9})
    stage.callbacks.end()
    assert diary.entries == [("test begins",), ("test ends", {"auc": 0.9})]


def test_a_callback_reads_the_rate_of_the_last_scheduler() -> None:
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    callbacks = [
        LearningRateScheduler(lambda version: 0.5),
        LearningRateScheduler(lambda version: 0.25),
        keras.callbacks.Callback(),
    ]
    sgd = keras.optimizers.SGD(1.0)
    JobCallbacks(callbacks, Occasion(model, "/zoo", Outbox(), lambda _: None, False, optimizer=sgd))
    assert float(model.optimizer.learning_rate) == 0.25


def test_a_callback_reads_the_rate_and_the_iterations_of_the_servers_optimizer() -> None:
    version = 0
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.5, 0.25])
    view = OptimizerView(keras.optimizers.SGD(schedule), lambda: version)
    assert (float(view.learning_rate), int(view.iterations.numpy())) == (0.5, 0)
    version = 11
    assert (float(view.lr), int(view.iterations)) == (0.25, 11)
    assert float(OptimizerView(keras.optimizers.Adam(0.125), lambda: 0).learning_rate) == 0.125
    ours = OptimizerView(keras.optimizers.SGD(1.0), lambda: 3, lambda at: at / 4)
    assert float(ours.learning_rate) == 0.75
    with pytest.raises(AttributeError, match="LearningRateScheduler"):
        view.learning_rate = 1.0  # type: ignore[misc]  # what a callback may try
    with pytest.raises(AttributeError, match="only learning_rate and iterations"):
        view.variables  # noqa: B018
