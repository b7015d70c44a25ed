"""DeepFM as a user would write it: plain Keras, nothing distributed."""

import keras
from keras import layers, ops

from bench.deepfm_data import DENSE, DIM, FIELDS, HIDDEN, LEARNING_RATE, VOCABULARY


def custom_model(optimizer="adam"):
    del optimizer
    dense = keras.Input((DENSE,), name="numbers")
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    uniform = keras.initializers.RandomUniform(-0.05, 0.05)
    vectors = layers.Embedding(VOCABULARY, DIM, embeddings_initializer=uniform, name="vectors")(ids)
    wide = layers.Embedding(VOCABULARY, 1, embeddings_initializer=uniform, name="wide")(ids)
    total = ops.sum(vectors, 1)
    pairs = 0.5 * ops.sum(total * total - ops.sum(vectors * vectors, 1), 1, keepdims=True)
    hidden = layers.Concatenate()([layers.Reshape((FIELDS * DIM,))(vectors), dense])
    for units in HIDDEN:
        hidden = layers.Dense(units, activation="relu")(hidden)
    logit = (
        layers.Dense(1)(hidden) + pairs + ops.sum(wide, 1) + layers.Dense(1, use_bias=False)(dense)
    )
    return keras.Model({"numbers": dense, "ids": ids}, logit)


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer(optimizer="adam"):
    kind = {"adam": keras.optimizers.Adam, "adagrad": keras.optimizers.Adagrad}[optimizer]
    return kind(LEARNING_RATE[optimizer])


def feed_batch(records, mode, metadata):
    return {"numbers": records["dense"], "ids": records["ids"]}, records["label"]


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
