"""Handwritten digits from .npz arrays `image` float32[n, 8, 8, 1] (0 to 16) and `label` int64[n]: a
small CNN.
"""

import keras
from keras import layers


def custom_model(filters=32):
    """float32[n, 8, 8, 1] -> logits [n, 10].

    Scaling is part of the model, so the export takes raw images.
    """
    return keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            layers.Rescaling(1 / 16),
            layers.Conv2D(filters, 3, padding="same", activation="relu"),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, name="digit"),
        ]
    )


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


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
