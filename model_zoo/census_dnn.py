"""The census income data from CSV: a dense network on embedded categories.

Each column is an input of its own name. Vocabularies and statistics are of the layers;
`elasticdl analyze` computes them for other data.
"""

import keras
import tensorflow as tf
from keras import layers

from elasticdl.preprocessing import ConcatenateWithOffset, ToNumber

NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
MEAN = (39.5, 8.5, 450.0, 100.0, 40.0)
DEVIATION = (12.5, 4.6, 1900.0, 450.0, 12.0)
CATEGORIES = {
    "workclass": 20,
    "education": 30,
    "marital_status": 20,
    "occupation": 30,
    "relationship": 20,
    "race": 20,
    "sex": 10,
    "native_country": 100,
}
"""Bins of each column's hash."""
LABEL = "income_bracket"


def custom_model(dim=8, hidden=32):
    """{name of a column: string[n, 1]} -> logit [n, 1]."""
    columns = inputs()
    ids = [layers.Hashing(bins)(columns[name]) for name, bins in CATEGORIES.items()]
    embedding = layers.Embedding(sum(CATEGORIES.values()), dim, name="categories")
    values = layers.Concatenate()([layers.Flatten()(embedding(joined(ids))), numbers(columns)])
    for units in (hidden, hidden // 2):
        values = layers.Dense(units, activation="relu")(values)
    return keras.Model(columns, layers.Dense(1)(values))


def inputs():
    """An input for each column."""
    names = (*NUMBERS, *CATEGORIES)
    return {name: keras.Input((1,), dtype="string", name=name) for name in names}


def joined(ids):
    """Ids [n, 1] of each category -> ids [n, 8] that do not clash."""
    bins = list(CATEGORIES.values())
    offsets = [sum(bins[:place]) for place in range(len(bins))]
    return ConcatenateWithOffset(offsets, axis=1)(ids)


def numbers(columns):
    """Normalized numbers, float32[n, 5]."""
    values = layers.Concatenate()([ToNumber()(columns[name]) for name in NUMBERS])
    variance = [deviation * deviation for deviation in DEVIATION]
    return layers.Normalization(mean=MEAN, variance=variance)(values)


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.002):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Rows of text -> ({name: string[1]}, float32[1]).

    It batches first: one call for many rows is faster.
    """
    columns = list(metadata.column_names)

    def parse(rows):
        features = {
            name: rows[:, columns.index(name), tf.newaxis] for name in (*NUMBERS, *CATEGORIES)
        }
        if mode == "prediction":
            return features
        label = tf.strings.regex_full_match(rows[:, columns.index(LABEL)], r"\s*>50K\.?")
        return features, tf.cast(label, tf.float32)[:, tf.newaxis]

    return dataset.batch(4096).map(parse).unbatch()


def eval_metrics_fn():
    """Accuracy and area under the ROC curve."""
    return {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
        "auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True),
    }
