"""Templates of the files that `elasticdl zoo init` writes, with placeholders such as `@NAME@`."""

from __future__ import annotations

MODULE = '''"""A model module: fill in the functions, as one fills in map and reduce.

Try it on this machine:
    elasticdl train --model-zoo . --model-def example --training-data example.csv --num-epochs 40
and in the image that `elasticdl zoo build` makes, with
    --model-zoo /model_zoo --training-data /model_zoo/example.csv
"""

import keras
import tensorflow as tf

FEATURES = ("x", "y")
"""Columns that the model sees, as numbers."""
LABEL = "label"
"""The column that it learns: a class, from 0."""


def custom_model(classes=2, hidden=16):
    """A plain Keras model. Parameters come from --model-params, for example `hidden=32`."""
    return keras.Sequential(
        [
            keras.Input((len(FEATURES),)),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


def loss(labels, predictions):
    """A scalar, or a value per example."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.02):
    """A Keras optimizer."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """A tf.data.Dataset of records (CSV: vectors of text) to one of (features, label).

    It is batched afterwards.
    """
    columns = list(metadata.column_names)
    places = [columns.index(name) for name in FEATURES]

    def parse(record):
        features = tf.strings.to_number(tf.gather(record, places))
        if mode == "prediction":
            return features
        return features, tf.strings.to_number(record[columns.index(LABEL)], tf.int32)

    return dataset.map(parse)


def eval_metrics_fn():
    """Keras metrics, or functions of (labels, predictions), by name."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
'''

DOCKERFILE = """# This model zoo as an image for `elasticdl train --image-name`.
# `elasticdl zoo build` builds it; docker, podman and buildah do, too.
ARG BASE_IMAGE=@BASE_IMAGE@
FROM ${BASE_IMAGE}
# Root only while packages are installed. They come before the modules, so that a change of a module
# rebuilds the last, small layer only.
USER root
COPY requirements.txt /tmp/requirements.txt
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check -r /tmp/requirements.txt \\
    && rm /tmp/requirements.txt
USER 1000:1000
COPY . @FOLDER@
"""

REQUIREMENTS = """# Python packages that the modules import besides TensorFlow, Keras and NumPy,
# one a line, such as: scikit-learn==1.9.0
"""

IGNORED = """# What does not belong into the image.
.git
.dockerignore
Dockerfile
**/__pycache__
jobs
"""


def example_data() -> str:
    """Return a CSV file of points, labelled by whether they are inside a circle."""
    points = [(x / 10 - 1, y / 10 - 1) for x in range(21) for y in range(21)]
    return "x,y,label\n" + "".join(
        f"{x:.1f},{y:.1f},{int(x * x + y * y < 0.6)}\n" for x, y in points
    )
