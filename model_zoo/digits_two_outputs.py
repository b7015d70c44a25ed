"""Digits with two outputs, the digit and whether it is even; labels, outputs and metrics are dicts
by output.
"""

import keras
import tensorflow as tf
from keras import layers


def custom_model(units=128):
    """float32[n, 8, 8, 1] -> {"digit": logits [n, 10], "even": logit [n, 1]}."""
    image = keras.Input((8, 8, 1), name="image")
    hidden = layers.Flatten()(layers.Rescaling(1 / 16)(image))
    hidden = layers.Dense(units, activation="relu")(hidden)
    return keras.Model(image, {"digit": layers.Dense(10)(hidden), "even": layers.Dense(1)(hidden)})


def loss(labels, predictions):
    """The digit's cross-entropy and half of the other's, per example, [n]."""
    digit = keras.losses.sparse_categorical_crossentropy(
        labels["digit"], predictions["digit"], from_logits=True
    )
    even = keras.losses.binary_crossentropy(labels["even"], predictions["even"], from_logits=True)
    return digit + 0.5 * even


def optimizer(lr=0.05):
    """Adagrad."""
    return keras.optimizers.Adagrad(lr)


def feed(dataset, mode, metadata):
    """Dicts of one record's arrays -> (image, {"digit": int64, "even": float32[1]})."""
    if mode == "prediction":
        return dataset.map(lambda record: record["image"])

    def parse(record):
        even = tf.cast(record["label"] % 2 == 0, tf.float32)
        return record["image"], {"digit": record["label"], "even": even[tf.newaxis]}

    return dataset.map(parse)


def eval_metrics_fn():
    """Metrics of each output."""
    return {
        "digit": {"accuracy": keras.metrics.SparseCategoricalAccuracy()},
        "even": {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)},
    }
