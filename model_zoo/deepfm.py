"""DeepFM on Criteo's format: label, 13 counts, 26 hex strings, separated by tabs; fields may be
empty.

`--data-reader-params "format=csv;delimiter=tab;header=false"`. A layer of the model
hashes strings, so any value is valid.
After Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction (2017).
"""

import keras
import tensorflow as tf
from keras import layers, ops

NUMBERS, CATEGORIES = 13, 26


def custom_model(hash_bins=1 << 18, dim=8, hidden=64):
    """{"numbers": float32[n, 13], "categories": string[n, 26]} -> logit [n, 1]."""
    categories = keras.Input((CATEGORIES,), dtype="string", name="categories")
    ids = layers.Hashing(hash_bins)(categories)
    numbers, logit = network(ids, hash_bins, dim, hidden)
    return keras.Model({"numbers": numbers, "categories": categories}, logit)


def network(ids, vocabulary, dim, hidden):
    """Ids int[n, 26] below `vocabulary` -> the input of numbers, and the logit [n, 1]: wide + FM +
    deep.
    """
    numbers = keras.Input((NUMBERS,), name="numbers")
    uniform = keras.initializers.RandomUniform(-0.01, 0.01, seed=1)
    vectors = layers.Embedding(vocabulary, dim, embeddings_initializer=uniform, name="vectors")(ids)
    weights = layers.Embedding(vocabulary, 1, embeddings_initializer="zeros", name="weights")(ids)
    total = ops.sum(vectors, 1)
    pairs = 0.5 * ops.sum(total * total - ops.sum(vectors * vectors, 1), 1, keepdims=True)
    deep = layers.Concatenate()([layers.Flatten()(vectors), numbers])
    for _ in range(2):
        deep = layers.Dense(hidden, activation="relu")(deep)
    wide = ops.sum(weights, 1) + layers.Dense(1)(numbers)
    return numbers, wide + pairs + layers.Dense(1, use_bias=False)(deep)


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.001):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Rows of 40 strings -> ({"numbers", "categories"}, float32[1]).

    It batches first: one call for many rows is faster.
    """

    def parse(rows):
        counts = rows[:, 1 : 1 + NUMBERS]
        counts = tf.strings.to_number(tf.where(counts == "", "0", counts))
        fields = [f"C{number}=" for number in range(1, CATEGORIES + 1)]
        categories = tf.strings.join(
            [tf.broadcast_to(fields, tf.shape(rows[:, 1 + NUMBERS :])), rows[:, 1 + NUMBERS :]]
        )
        features = {"numbers": tf.math.log1p(tf.maximum(counts, 0)), "categories": categories}
        return features if mode == "prediction" else (features, tf.strings.to_number(rows[:, :1]))

    return dataset.batch(4096).map(parse).unbatch()


def eval_metrics_fn():
    """Area under the ROC curve, and mean cross-entropy."""
    return {
        "auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True),
        "loss": keras.metrics.BinaryCrossentropy(from_logits=True),
    }
