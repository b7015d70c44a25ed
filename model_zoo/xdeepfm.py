"""xDeepFM on the ids of deepfm_ids.py: a compressed interaction network (CIN) beside a dense one.

After Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
Systems (2018).
"""

import keras
from deepfm import CATEGORIES, NUMBERS, eval_metrics_fn, loss, optimizer  # noqa: F401
from deepfm_ids import feed_batch  # noqa: F401
from keras import layers, ops


def custom_model(vocabulary=26 * 100, dim=8, maps=16, depth=2, hidden=64):
    """{"numbers": float32[n, 13], "ids": int64[n, 26]} -> logit [n, 1]."""
    numbers = keras.Input((NUMBERS,), name="numbers")
    ids = keras.Input((CATEGORIES,), dtype="int64", name="ids")
    vectors = layers.Embedding(vocabulary, dim, name="vectors")(ids)
    weights = layers.Embedding(vocabulary, 1, embeddings_initializer="zeros", name="weights")(ids)
    deep = layers.Concatenate()([layers.Flatten()(vectors), numbers])
    for _ in range(2):
        deep = layers.Dense(hidden, activation="relu")(deep)
    explicit = interactions(ops.transpose(vectors, (0, 2, 1)), maps, depth)
    linear = ops.sum(weights, 1) + layers.Dense(1)(numbers)
    joined = layers.Concatenate()([explicit, deep])
    return keras.Model({"numbers": numbers, "ids": ids}, linear + layers.Dense(1)(joined))


def interactions(first, maps, depth):
    """CIN: vectors float32[n, dim, fields] -> float32[n, depth * maps].

    Each layer weights the products of its vectors with the first ones, element by element, and
    its own sums over the elements are a part of the result.
    """
    values, sums = first, []
    for _ in range(depth):
        pairs = values[:, :, :, None] * first[:, :, None, :]
        flat = layers.Reshape((first.shape[1], values.shape[2] * first.shape[2]))(pairs)
        values = layers.Dense(maps, use_bias=False)(flat)
        sums.append(ops.sum(values, 1))
    return layers.Concatenate()(sums)
