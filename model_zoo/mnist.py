"""MNIST from .npz arrays `image` uint8[n, 28, 28] and `label` int64[n]: a small CNN."""

import keras
from keras import layers

CLASSES = 10


def custom_model(filters=16, units=64):
    """uint8[n, 28, 28] -> logits [n, 10].

    Scaling is part of the model, so the export takes raw images.
    """
    image = keras.Input((28, 28), dtype="uint8", name="image")
    values = layers.Reshape((28, 28, 1))(layers.Rescaling(1 / 64, offset=-2)(image))
    for _ in range(2):
        values = layers.Conv2D(filters, 3, activation="relu")(values)
        values = layers.MaxPooling2D(2)(values)
    values = layers.Dense(units, activation="relu")(layers.Flatten()(values))
    return keras.Model(image, layers.Dense(CLASSES, name="digit")(values))


def loss(labels, predictions):
    """Cross-entropy per example, [n]."""
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.002):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Dicts of one record's arrays -> (image, label)."""
    if mode == "prediction":
        return dataset.map(lambda record: record["image"])
    return dataset.map(lambda record: (record["image"], record["label"]))


def eval_metrics_fn():
    """Share of right digits."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
