"""digits, as slowly as a test needs it: every batch takes PACE_S until the file `hurry` is there.

A worker that finds the file `eat` takes memory until it is killed for it, and one that finds the
file `hang` never comes back; one worker for one file.
"""

import os
import time

import keras
from digits import custom_model, eval_metrics_fn, feed, loss, optimizer  # noqa: F401

FOLDER = os.environ.get("PACED_FOLDER", ".")
PACE_S = 0.8


class Paced(keras.callbacks.Callback):
    """What a test orders by files, before each batch."""

    def on_train_batch_begin(self, batch, logs=None):
        if _taken("eat"):
            hoard = []
            while True:
                hoard.append(b"x" * (32 << 20))
        if _taken("hang"):
            while True:
                time.sleep(0.1)
        if not os.path.exists(os.path.join(FOLDER, "hurry")):
            time.sleep(PACE_S)


def _taken(name):
    path = os.path.join(FOLDER, name)
    try:
        os.rename(path, f"{path}.{os.getpid()}.{time.time_ns()}")
    except FileNotFoundError:
        return False
    return True


def callbacks():
    return [Paced()]
