"""DCN v2 on the ids of deepfm_ids.py: layers that cross all features, then a dense network.

After Wang et al., DCN V2: Improved Deep & Cross Network (2021). `rank` makes the matrices of the
crosses products of two thin ones.
"""

import keras
from deepfm import CATEGORIES, NUMBERS, eval_metrics_fn, loss, optimizer  # noqa: F401
from deepfm_ids import feed_batch  # noqa: F401
from keras import layers


def custom_model(vocabulary=26 * 100, dim=8, crosses=2, rank=32, hidden=64):
    """{"numbers": float32[n, 13], "ids": int64[n, 26]} -> logit [n, 1]."""
    features, first = embedded(vocabulary, dim)
    values = first
    for _ in range(crosses):
        mixed = layers.Dense(rank, use_bias=False)(values)
        values = first * layers.Dense(first.shape[-1])(mixed) + values
    for _ in range(2):
        values = layers.Dense(hidden, activation="relu")(values)
    return keras.Model(features, layers.Dense(1)(values))


def embedded(vocabulary, dim):
    """The inputs by name, and the embedded ids beside the numbers, [n, 26 * dim + 13]."""
    numbers = keras.Input((NUMBERS,), name="numbers")
    ids = keras.Input((CATEGORIES,), dtype="int64", name="ids")
    vectors = layers.Embedding(vocabulary, dim, name="vectors")(ids)
    values = layers.Concatenate()([layers.Flatten()(vectors), numbers])
    return {"numbers": numbers, "ids": ids}, values
