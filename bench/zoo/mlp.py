"""784-512-512-10: 2.7 MB of gradients, the work on which elastic rings are compared."""

import keras
from keras import layers

from bench.step_log import StepLog


def custom_model():
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(512, activation="relu"),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )


def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer():
    return keras.optimizers.SGD(0.01, momentum=0.9)


def feed_batch(records, mode, metadata):
    return records["x"], records["y"]


def callbacks():
    return [StepLog()]
