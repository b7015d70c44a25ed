"""Sentiment of short texts from CSV (`text`, `label`): a CNN over hashed words.

After Kim, Convolutional Neural Networks for Sentence Classification (2014).
"""

import keras
import tensorflow as tf
from keras import layers

WORDS = 32
"""Longer texts are cut; shorter ones end with empty words."""


def custom_model(hash_bins=20_000, dim=16, filters=16):
    """string[n, 32] -> logit [n, 1]."""
    words = keras.Input((WORDS,), dtype="string", name="words")
    ids = layers.Hashing(hash_bins, mask_value="")(words)
    vectors = layers.Embedding(hash_bins, dim, name="words_embedding")(ids)
    found = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(filters, width, activation="relu")(vectors))
        for width in (1, 2, 3)
    ]
    values = layers.Dense(16, activation="relu")(layers.Concatenate()(found))
    return keras.Model(words, layers.Dense(1, name="positive")(values))


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.003):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Rows of text -> (string[32], float32[1])."""
    columns = list(metadata.column_names)

    def parse(rows):
        text = tf.strings.lower(rows[:, columns.index("text")])
        words = tf.strings.split(tf.strings.regex_replace(text, r"[^\w\s]", " "))
        features = words.to_tensor(shape=(None, WORDS))
        if mode == "prediction":
            return features
        label = tf.strings.to_number(rows[:, columns.index("label")])
        return features, label[:, tf.newaxis]

    return dataset.batch(4096).map(parse).unbatch()


def eval_metrics_fn():
    """Share of right labels."""
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)}
