"""Breast cancer (30 measurements, benign or not) from Parquet: wide & deep with Keras'
preprocessing layers.

Deep: normalized measurements and embeddings of their discretized values. Wide: weights of crosses
    of discretized
measurements, hashed. The learning rate falls with the version.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from elasticdl.model.callbacks import LearningRateScheduler

PARTS = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave_points",
    "symmetry",
    "fractal_dimension",
)
NAMES = tuple(f"{kind}_{part}" for kind in ("mean", "error", "worst") for part in PARTS)
MEAN = (
    14.1, 19.3, 92.0, 655.0, 0.0964, 0.104, 0.0888, 0.0489, 0.181, 0.0628, 0.405, 1.22, 2.87, 40.3,
    0.00704, 0.0255, 0.0319, 0.0118, 0.0205, 0.00379, 16.3, 25.7, 107.0, 881.0, 0.132, 0.254, 0.272,
    0.115, 0.290, 0.0839,
)  # fmt: skip
DEVIATION = (
    3.52, 4.30, 24.3, 352.0, 0.0141, 0.0528, 0.0797, 0.0388, 0.0274, 0.00706, 0.277, 0.551, 2.02,
    45.5, 0.003, 0.0179, 0.0302, 0.00617, 0.00826, 0.00264, 4.83, 6.14, 33.6, 569.0, 0.0228, 0.157,
    0.208, 0.0657, 0.0618, 0.0181,
)  # fmt: skip
BOUNDS = [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5]
CROSSES = (
    ("mean_texture", "worst_area"),
    ("worst_radius", "worst_concave_points"),
    ("mean_concavity", "worst_smoothness"),
)


def custom_model(embedding_dim=4, hash_bins=1024):
    """float32[n, 30] -> logit [n, 1]."""
    measured = keras.Input((len(NAMES),), name="measured")
    normal = layers.Normalization(mean=MEAN, variance=np.square(DEVIATION))(measured)
    bucket = layers.Discretization(bin_boundaries=BOUNDS)(normal)
    own_buckets = bucket + keras.ops.arange(len(NAMES), dtype=bucket.dtype) * (len(BOUNDS) + 1)
    embedded = layers.Embedding(len(NAMES) * (len(BOUNDS) + 1), embedding_dim, name="buckets")(
        own_buckets
    )
    deep = layers.Concatenate()([layers.Flatten()(embedded), normal])
    for units in (32, 16):
        deep = layers.Dense(units, activation="relu")(deep)
    weights = layers.Embedding(hash_bins, 1, embeddings_initializer="zeros", name="crosses")
    crossed = [_cross(bucket, number, pair, hash_bins) for number, pair in enumerate(CROSSES)]
    wide = keras.ops.sum(weights(layers.Concatenate()(crossed)), axis=1)
    return keras.Model(measured, layers.Dense(1)(deep) + wide)


def _cross(bucket, number, pair, hash_bins):
    """Return int64[n, 1]: a hashed bin for the pair of buckets."""
    first, second = (NAMES.index(name) for name in pair)
    code = (number * 100 + bucket[:, first : first + 1]) * 100 + bucket[:, second : second + 1]
    return layers.Hashing(hash_bins, salt=7)(code)


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.005):
    """Adam."""
    return keras.optimizers.Adam(lr)


def callbacks():
    """The learning rate halves every 200 versions."""
    return [LearningRateScheduler(lambda version: 0.005 * 0.5 ** (version / 200))]


def feed(dataset, mode, metadata):
    """Dicts of one record's columns -> (float32[30], float32[1])."""

    def parse(record):
        measured = tf.cast(tf.stack([record[name] for name in NAMES]), tf.float32)
        return (
            measured
            if mode == "prediction"
            else (measured, tf.cast(record["benign"], tf.float32)[tf.newaxis])
        )

    return dataset.map(parse)


def eval_metrics_fn():
    """Accuracy and area under the ROC curve."""
    return {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
        "auc": keras.metrics.AUC(from_logits=True),
    }
