"""DLRM on the ids of deepfm_ids.py: products of all pairs of vectors between two dense networks.

After Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation
Systems (2019).
"""

import keras
import numpy as np
from deepfm import CATEGORIES, NUMBERS, eval_metrics_fn, loss, optimizer  # noqa: F401
from deepfm_ids import feed_batch  # noqa: F401
from keras import layers, ops


def custom_model(vocabulary=26 * 100, dim=8, hidden=64):
    """{"numbers": float32[n, 13], "ids": int64[n, 26]} -> logit [n, 1]."""
    numbers = keras.Input((NUMBERS,), name="numbers")
    ids = keras.Input((CATEGORIES,), dtype="int64", name="ids")
    bottom = numbers
    for units in (hidden, dim):
        bottom = layers.Dense(units, activation="relu")(bottom)
    vectors = layers.Embedding(vocabulary, dim, name="vectors")(ids)
    vectors = layers.Concatenate(axis=1)([vectors, bottom[:, None, :]])
    values = layers.Concatenate()([products(vectors), bottom])
    for units in (hidden, hidden):
        values = layers.Dense(units, activation="relu")(values)
    return keras.Model({"numbers": numbers, "ids": ids}, layers.Dense(1)(values))


def products(vectors):
    """Scalar products of all pairs: float32[n, vectors, dim] -> [n, vectors (vectors - 1) / 2]."""
    count = vectors.shape[1]
    square = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
    first, second = np.triu_indices(count, 1)
    return ops.take(layers.Reshape((count * count,))(square), first * count + second, axis=1)
