"""A small model in float64, of which trajectories can be compared."""

import keras
import tensorflow as tf


def custom_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,), dtype="float64"),
            layers.Dense(
                8,
                activation="tanh",
                dtype="float64",
                kernel_regularizer=keras.regularizers.L2(1e-3),
            ),
            layers.Dense(1, dtype="float64"),
        ]
    )


def loss(labels, predictions):
    return tf.square(labels - predictions[:, 0])


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def feed(dataset, mode, metadata):
    return dataset.map(lambda row: (row[:4], row[4]))
