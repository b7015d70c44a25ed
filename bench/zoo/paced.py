"""A linear model whose step takes a given time; longer in the worker that PACED_SLOW names."""

import os
import time

import keras
import tensorflow as tf

STEP_S = float(os.environ.get("PACED_STEP_S", "0.05"))
SLOWER = 10.0


def custom_model(columns=8):
    """float32[n, columns] -> [n, 1]."""
    return keras.Sequential([keras.Input((columns,)), keras.layers.Dense(1)])


def loss(labels, predictions):
    """Squares per example, after a wait that uses no processor."""

    def wait():
        slow = os.environ.get("ELASTICDL_PROCESS") == os.environ.get("PACED_SLOW")
        time.sleep(STEP_S * (SLOWER if slow else 1.0))
        return 0.0

    return tf.square(labels - predictions[:, 0]) + tf.py_function(wait, [], tf.float32)


def optimizer():
    """Plain SGD."""
    return keras.optimizers.SGD(0.01)


def feed(dataset, mode, metadata):
    """Rows of one array; the last column is the label."""

    def pair(columns):
        (row,) = columns.values()
        return row[:-1], row[-1]

    return dataset.map(pair)
