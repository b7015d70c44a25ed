"""Keras callbacks that write a file: a job with many workers gets one complete file.

With validation data, the worker that summarises evaluation rounds writes it, from its first round
on. A worker that takes over first receives the earlier rounds, so that it writes the file again, or
continues if the callback only appends. Without validation data there are no values of the whole
job: each worker writes its own file, and only worker 0 uses the plain name.

Relative paths are below the job's directory. Of Keras's `TensorBoard`, the curves of epochs are
written, with Keras's names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import keras

from elasticdl.cluster.base import ProcessName
from elasticdl.history.event_file import EventFile

Logs = Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class CallbackFiles:
    """Where a worker's callbacks write."""

    job_dir: Path
    worker: ProcessName
    has_validation: bool

    def path(self, name: str, *, is_folder: bool) -> Path:
        """The path of a file or folder that a callback names."""
        path = self.job_dir / name
        if self.has_validation or self.worker.index == 0:
            return path
        return (
            path / str(self.worker)
            if is_folder
            else path.with_name(f"{path.stem}.{self.worker}{path.suffix}")
        )


def placed(
    callbacks: Sequence[keras.callbacks.Callback], callback_files: CallbackFiles
) -> list[keras.callbacks.Callback]:
    """The callbacks, with those that write files adapted to a job.

    The module's own objects are changed.
    """
    result = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback = OneFile(Curves(callback_files.path(callback.log_dir, is_folder=True)))
        elif isinstance(callback, keras.callbacks.CSVLogger):
            path = callback_files.path(callback.filename, is_folder=False)
            path.parent.mkdir(parents=True, exist_ok=True)
            callback.filename = str(path)
            callback = OneFile(callback)
        result.append(callback)
    return result


@final
class OneFile(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Begins a callback when there is something to write.

    `recalling` is True during rounds that another worker has already written.
    """

    def __init__(self, inner: keras.callbacks.Callback) -> None:
        super().__init__()
        self._inner = inner
        self._begun = False
        self.recalling = False
        self.round: int | None = None
        """The number of the evaluation round that is passed on; an epoch may have several."""

    @property
    def name(self) -> str:
        """The inner callback's name, for errors."""
        return type(self._inner).__name__

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write a row."""
        if self.recalling and getattr(self._inner, "append", False):
            return
        if not self._begun:
            self._begun = True
            self._inner.on_train_begin({})
        by_round = self.round is not None and isinstance(self._inner, Curves)
        self._inner.on_epoch_end(self.round if by_round else epoch, dict(logs or {}))

    def on_train_end(self, logs: Logs = None) -> None:
        if self._begun:
            self._inner.on_train_end(dict(logs or {}))


@final
class Curves(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """The curves of `keras.callbacks.TensorBoard`, with rounds as steps, or else epochs.

    Their names are `epoch_NAME`, in the runs `train` and `validation`.
    """

    append = True
    """Points in another worker's file are not written again."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__()
        self._train, self._validation = (
            EventFile(log_dir / "train"),
            EventFile(log_dir / "validation"),
        )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write a point of each curve."""
        values: Mapping[str, Any] = logs or {}
        validation = {
            f"epoch_{name[4:]}": float(value)
            for name, value in values.items()
            if name.startswith("val_")
        }
        training = {
            f"epoch_{name}": float(value)
            for name, value in values.items()
            if not name.startswith("val_")
        }
        for file, points in ((self._train, training), (self._validation, validation)):
            if points:
                file.add(points, epoch, time.time())

    def on_train_end(self, logs: Logs = None) -> None:
        """Close the files."""
        self._train.close()
        self._validation.close()
