"""digits with callbacks that change what only one member could know of, and that note the learning
rate of each step.
"""

import json
import os
from pathlib import Path

import keras
from digits import custom_model, feed, loss, optimizer  # noqa: F401

from elasticdl.model.callbacks import SavedModelExporter

NOTES = Path(os.environ.get("NOTES_FOLDER", "."))


class Halving(keras.callbacks.Callback):
    """Halves the learning rate after each round; what it does to the weights must not stay."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate.numpy()) / 2
        self.model.layers[-1].bias.assign_add([100.0] * 10)


class Notes(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        rate = float(self.model.optimizer.learning_rate.numpy())
        version = int(self.model.optimizer.iterations.numpy())
        with (NOTES / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps({"version": version, "rate": rate, "loss": logs["loss"]}) + "\n")


def callbacks():
    never_better = keras.callbacks.EarlyStopping(
        monitor="val_accuracy", mode="max", min_delta=1.0, patience=1
    )
    return [Halving(), Notes(), never_better, SavedModelExporter()]


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.SparseCategoricalAccuracy(),
        "top3": keras.metrics.SparseTopKCategoricalAccuracy(3),
    }
