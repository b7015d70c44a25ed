"""One table, of any size, and nothing else to compute. What a row becomes is known beforehand.

The gradient of a row does not depend on any weight. So a row that was trained once has the value
-`slope(id)` * (0, 1, 2, …), exactly, and one that was never trained is zero.
"""

import keras
import tensorflow as tf
from keras import layers

_SLOPES = 1024


def custom_model(rows, dim):
    ids = keras.Input((1,), dtype="int64", name="ids")
    row = layers.Flatten()(layers.Embedding(rows, dim, "zeros", name="items")(ids))
    return keras.Model(ids, keras.ops.sum(row * keras.ops.arange(dim, dtype="float32"), axis=1))


def slope(ids):
    return (ids % _SLOPES + 1) / _SLOPES


def loss(labels, predictions):
    return keras.ops.sum(predictions * labels)


def optimizer():
    return keras.optimizers.SGD(1.0)


def feed_batch(records, mode, metadata):
    ids = tf.reshape(records["ids"], (-1, 1))
    return ids, tf.cast(slope(records["ids"]), tf.float32)
