"""Retrieval with two towers: .npz arrays `user` and `item`, int64[n], of what users chose.

The model scores an item by the product of a vector of the user and one of the item. Training
compares the chosen item with random ones. The metric is how often the chosen item is among the
first 10 of it and 100 others.
"""

import keras
import tensorflow as tf
from keras import layers, ops

ITEMS = 1000
OTHERS = {"training": 20, "evaluation": 100}


def custom_model(users=2000, items=ITEMS, dim=16):
    """{"user": int64[n, 1], "items": int64[n, candidates]} -> scores [n, candidates]."""
    user = keras.Input((1,), dtype="int64", name="user")
    candidates = keras.Input((None,), dtype="int64", name="items")
    asking = tower(users, dim, "users")(user)
    offered = tower(items, dim, "items")(candidates)
    popularity = layers.Embedding(items, 1, embeddings_initializer="zeros", name="popularity")
    scores = ops.sum(asking * offered, axis=2) + popularity(candidates)[:, :, 0]
    return keras.Model({"user": user, "items": candidates}, scores)


def tower(vocabulary, dim, name):
    """Ids [n, k] -> vectors [n, k, dim]."""
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int64"),
            layers.Embedding(vocabulary, dim, name=name),
            layers.Dense(2 * dim, activation="relu"),
            layers.Dense(dim),
        ],
        name=f"{name}_tower",
    )


def loss(labels, predictions):
    """Cross-entropy of the choice among the candidates, per example, [n]."""
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.005):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed_batch(records, mode, metadata):
    """A minibatch of columns -> ({"user", "items"}, labels): the first candidate was chosen.

    In evaluation the others depend on the record only, so that its result does, too.
    """
    user, item = (tf.cast(records[name], tf.int64)[:, None] for name in ("user", "item"))
    if mode == "prediction":
        return {"user": user, "items": item}
    shape = (tf.shape(user)[0], OTHERS[mode])
    if mode == "training":
        others = tf.random.uniform(shape, maxval=ITEMS, dtype=tf.int64)
    else:
        places = tf.range(shape[1], dtype=tf.int64) * 2654435761
        others = ((user * 40503 + item * 69621 + 12345) * 48271 + places) // 64 % ITEMS
    features = {"user": user, "items": tf.concat([item, others], 1)}
    return features, tf.zeros((shape[0],), tf.int64)


def eval_metrics_fn():
    """How often the chosen item is among the first 10."""
    return {"hit_rate": keras.metrics.SparseTopKCategoricalAccuracy(k=10)}
