"""One table, of any size, and nothing else to compute."""

import keras
from keras import layers


def custom_model(rows, dim):
    ids = keras.Input((1,), dtype="int64", name="ids")
    row = layers.Flatten()(layers.Embedding(rows, dim, name="items")(ids))
    return keras.Model(ids, layers.Dense(1)(row))


def loss(labels, predictions):
    return keras.ops.mean(keras.ops.square(predictions - labels))


def optimizer():
    return keras.optimizers.SGD(0.01)


def feed_batch(records, mode, metadata):
    return records["ids"].reshape(-1, 1), records["ids"] % 2
