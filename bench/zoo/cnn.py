"""A small CNN with batch normalization, momentum and a high learning rate: it shows what staleness
costs.

`PACED_STEP_S` makes a step last that long at least, without a processor: as on a machine with a
core for each worker.
"""

import os
import time

import keras
import tensorflow as tf
from keras import layers


def custom_model(optimizer="momentum", rate=0.0, steps=1024):
    del optimizer, rate, steps
    image = keras.Input((16, 16, 3), name="image")
    x = image
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D()(layers.ReLU()(x))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def loss(labels, predictions):
    value = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)
    if "PACED_STEP_S" not in os.environ:
        return value

    def wait():
        time.sleep(float(os.environ["PACED_STEP_S"]))
        return 0.0

    return value + tf.py_function(wait, [], tf.float32)


def optimizer(optimizer="momentum", rate=0.0, steps=1024):
    rates = {"momentum": 0.2, "nesterov": 0.2, "sgd": 1.0, "adam": 0.003, "adagrad": 0.05}
    decay = keras.optimizers.schedules.CosineDecay(rate or rates[optimizer], steps)
    makers = {
        "momentum": lambda: keras.optimizers.SGD(decay, momentum=0.9),
        "nesterov": lambda: keras.optimizers.SGD(decay, momentum=0.9, nesterov=True),
        "sgd": lambda: keras.optimizers.SGD(decay),
        "adam": lambda: keras.optimizers.Adam(decay),
        "adagrad": lambda: keras.optimizers.Adagrad(decay),
    }
    return makers[optimizer]()


def feed_batch(records, mode, metadata):
    return records["image"], records["label"]


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
