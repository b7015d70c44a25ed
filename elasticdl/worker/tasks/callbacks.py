"""Run the Keras callbacks of a model module at the moments that a distributed job has.

- `on_train_begin`, `on_train_batch_begin/end` (logs: loss) and `on_train_end`: on each worker, for
  its own work.
- `on_epoch_begin`: on each worker, at its first batch of an epoch.
- `on_test_begin/end`: once per evaluation round, on the worker that summarises it, with the values
  as logs. It is the same worker as long as it lives. One that takes over first receives the
  earlier rounds, with a model that cannot be saved.
- `on_epoch_end`: with validation data right after `on_test_end`, with the values as `val_NAME`, as
  Keras names them, and the worker's mean training `loss`. Without validation data on each worker,
  when it begins the next epoch and at its end.

A job that only evaluates runs `on_test_begin/end` alone; one that predicts runs none.

If a callback sets `model.stop_training`, the job's training ends. Before a round's callbacks the
local model gets the round's dense weights. Changes of weights by a callback stay local.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import keras

from elasticdl.errors import UserError
from elasticdl.model.callbacks import LearningRateScheduler, MaxStepsStopping, SavedModelExporter
from elasticdl.model.optimizer_view import OptimizerView
from elasticdl.model.optimizers import Optimizer
from elasticdl.model.usercode import user_code
from elasticdl.shard import Lease
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.process.shutdown import CallbackFailed
from elasticdl.worker.tasks.callback_files import CallbackFiles, OneFile, placed
from elasticdl.worker.tasks.evaluation import PastRound

_OURS = (LearningRateScheduler, MaxStepsStopping, SavedModelExporter)
_BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


@dataclass(frozen=True, slots=True)
class Occasion:
    """The job's side of callbacks.

    `refresh` sets the local model to the dense weights that a lease names. `training`: the job
    trains, rather than evaluates or predicts. `callback_files`: where callbacks write files; None:
    at their own paths.
    """

    model: keras.Model
    zoo: str
    outbox: Outbox
    refresh: Callable[[Lease], None]
    has_validation: bool
    training: bool = True
    callback_files: CallbackFiles | None = None
    optimizer: Optimizer | None = None
    """The optimizer that parameter servers apply; None on a ring, whose model has its own."""


@final
class JobCallbacks:
    """Belongs to the loop's thread.

    Raises CallbackFailed, with the user's frames, if a callback raises.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], occasion: Occasion) -> None:
        self._occasion = occasion
        users = [callback for callback in callbacks if not isinstance(callback, _OURS)]
        self._users = (
            users if occasion.callback_files is None else placed(users, occasion.callback_files)
        )
        self._steps_max = min(
            (
                callback.max_steps
                for callback in callbacks
                if isinstance(callback, MaxStepsStopping)
            ),
            default=None,
        )
        self._each_batch = [
            callback for callback in self._users if _overrides(callback, _BATCH_METHODS)
        ]
        self._version = 0
        if occasion.optimizer is not None and self._users:
            schedules = [
                callback.schedule
                for callback in callbacks
                if isinstance(callback, LearningRateScheduler)
            ]
            # The last one sets the rate, as in `schedule_of`.
            schedule = schedules[-1] if schedules else None
            occasion.model.optimizer = OptimizerView(
                occasion.optimizer, lambda: self._version, schedule
            )
        self._epoch: int | None = None
        self._steps = 0
        self._losses = 0.0
        self._loss_count = 0
        self._asked = False
        self._rounds: set[int | None] = set()
        """Evaluation rounds that the callbacks have received."""

    @property
    def any(self) -> bool:
        """Whether there are callbacks of the user's own."""
        return bool(self._users)

    def begin(self, params: Mapping[str, object]) -> None:
        """Run `on_train_begin`."""
        self._occasion.model.stop_training = False
        for callback in self._users:
            callback.set_params(dict(params))
            callback.set_model(self._occasion.model)
        if self._occasion.training:
            self._call("on_train_begin", {})

    def before_step(self, lease: Lease) -> None:
        """Call before a batch of a training lease."""
        if lease.epoch != self._epoch:
            self._change_epoch(lease.epoch)
        if self._each_batch:
            self._call_on(self._each_batch, "on_train_batch_begin", self._steps, {})

    def after_step(self, loss: float | None, version: int) -> None:
        """Call after a batch (loss None: nothing was computed).

        `version` is the model's newest known.
        """
        self._version = version
        if loss is not None:
            self._losses += loss
            self._loss_count += 1
            if self._each_batch:
                self._call_on(self._each_batch, "on_train_batch_end", self._steps, {"loss": loss})
            self._steps += 1
        if self._steps_max is not None and version >= self._steps_max:
            self._ask_stop(f"MaxStepsStopping: version {version} of {self._steps_max}")
        elif self._users and self._occasion.model.stop_training:
            self._ask_stop("a callback of the model module set stop_training")

    def tested(self, lease: Lease, values: Mapping[str, float]) -> bool:
        """An evaluation round has values. True if a callback requests the end of training."""
        if not self._users:
            return False
        if lease.round not in self._rounds:
            self._occasion.refresh(lease)
            self._rounds.add(lease.round)
            self._at_round(lease.round)
            self._version = max(self._version, lease.version or 0)
            self._tell_round(lease.epoch, values, self._mean_loss())
        return self._occasion.training and bool(self._occasion.model.stop_training)

    def recall(self, rounds: Sequence[PastRound]) -> None:
        """Pass on the rounds of a lost worker, so that callbacks continue their counts here.

        The model of those rounds is lost, too. Therefore nothing that callbacks save of it is
        written.
        """
        missed = [past_round for past_round in rounds if past_round.round not in self._rounds]
        if not self._users or not missed:
            return
        past = cast("keras.Model", _PastModel(self._occasion.model))
        self._show(past)
        self._recalling(True)
        for past_round in missed:
            self._rounds.add(past_round.round)
            self._at_round(past_round.round)
            self._tell_round(
                past_round.epoch,
                past_round.values,
                {} if past_round.loss is None else {"loss": past_round.loss},
            )
        self._recalling(False)
        self._show(self._occasion.model)

    def _recalling(self, recalling: bool) -> None:
        for callback in self._users:
            if isinstance(callback, OneFile):
                callback.recalling = recalling

    def _at_round(self, number: int | None) -> None:
        for callback in self._users:
            if isinstance(callback, OneFile):
                callback.round = number

    def _tell_round(
        self, epoch: int, values: Mapping[str, float], loss: Mapping[str, float]
    ) -> None:
        self._call("on_test_begin", {})
        self._call("on_test_end", dict(values))
        if self._occasion.training:
            validation = {f"val_{name}": value for name, value in values.items()}
            self._call("on_epoch_end", epoch, {**validation, **loss})

    def _show(self, model: keras.Model) -> None:
        """Set the model without the callbacks' own `set_model`, which may have side effects."""
        for callback in self._users:
            keras.callbacks.Callback.set_model(callback, model)

    def end(self) -> None:
        """Run the last callbacks of a job that is done."""
        if not self._occasion.training:
            return
        if self._epoch is not None and not self._occasion.has_validation:
            self._call("on_epoch_end", self._epoch, self._mean_loss())
        self._call("on_train_end", self._mean_loss())

    def _change_epoch(self, epoch: int) -> None:
        if self._epoch is not None and not self._occasion.has_validation:
            self._call("on_epoch_end", self._epoch, self._mean_loss())
        self._epoch, self._losses, self._loss_count = epoch, 0.0, 0
        self._call("on_epoch_begin", epoch, {})

    def _mean_loss(self) -> dict[str, float]:
        return {"loss": self._losses / self._loss_count} if self._loss_count else {}

    def _ask_stop(self, reason: str) -> None:
        if not self._asked:
            self._asked = True
            self._occasion.outbox.ask_stop(reason)

    def _call(self, method: str, *arguments: Any) -> None:  # noqa: ANN401 - as Keras has them
        self._call_on(self._users, method, *arguments)

    def _call_on(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        method: str,
        *arguments: Any,  # noqa: ANN401
    ) -> None:
        for callback in callbacks:
            try:
                name = callback.name if isinstance(callback, OneFile) else type(callback).__name__
                with user_code(f"{name}.{method}", self._occasion.zoo):
                    getattr(callback, method)(*arguments)
            except UserError as error:
                raise CallbackFailed(error.message, hint=error.hint) from error


def _overrides(callback: keras.callbacks.Callback, methods: Sequence[str]) -> bool:
    base = keras.callbacks.Callback
    return any(
        getattr(type(callback), name) is not getattr(base, name) for name in methods
    ) or isinstance(callback, keras.callbacks.LambdaCallback)


@final
class _PastModel:
    """The model, except that it cannot be saved."""

    def __init__(self, model: keras.Model) -> None:
        object.__setattr__(self, "_model", model)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a model
        return getattr(object.__getattribute__(self, "_model"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_model"), name, value)

    def save(self, *_: object, **__: object) -> None:
        """Do nothing: the weights are not those of that round."""

    save_weights = export = save
