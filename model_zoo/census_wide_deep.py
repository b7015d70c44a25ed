"""The census income data: wide & deep, with crosses of columns and ages in bins.

The data and the other functions are those of census_dnn.py. After Cheng et al., Wide & Deep
Learning for Recommender Systems (2016).
"""

import keras
from census_dnn import (  # noqa: F401
    CATEGORIES,
    eval_metrics_fn,
    feed,
    inputs,
    joined,
    loss,
    numbers,
    optimizer,
)
from keras import layers, ops

from elasticdl.preprocessing import ToNumber

AGES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
CROSSES = (("education", "occupation"), ("education", "marital_status"), ("age", "occupation"))


def custom_model(dim=8, hidden=32, hash_bins=1000):
    """{name of a column: string[n, 1]} -> logit [n, 1]."""
    columns = inputs()
    ids = joined([layers.Hashing(bins)(columns[name]) for name, bins in CATEGORIES.items()])
    known = sum(CATEGORIES.values())
    embedded = layers.Embedding(known, dim, name="deep")(ids)
    deep = layers.Concatenate()([layers.Flatten()(embedded), numbers(columns)])
    for units in (hidden, hidden // 2):
        deep = layers.Dense(units, activation="relu")(deep)

    age = layers.Discretization(bin_boundaries=AGES)(ToNumber()(columns["age"]))
    crossed = {**columns, "age": age}
    bins = [
        layers.HashedCrossing(hash_bins)(tuple(crossed[name] for name in pair)) for pair in CROSSES
    ]
    weights = layers.Embedding(known, 1, embeddings_initializer="zeros", name="wide")
    crosses = layers.Embedding(
        len(CROSSES) * hash_bins, 1, embeddings_initializer="zeros", name="crosses"
    )
    offsets = ops.arange(len(CROSSES), dtype="int64") * hash_bins
    own_bins = layers.Concatenate()(bins) + offsets
    wide = ops.sum(weights(ids), axis=1) + ops.sum(crosses(own_bins), axis=1)
    return keras.Model(columns, layers.Dense(1)(deep) + wide)
