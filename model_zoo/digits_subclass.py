"""Digits from TFRecord as a subclassed model with BatchNormalization.

`--model-def digits_subclass.CustomModel`.
"""

import keras
import tensorflow as tf
from keras import layers

FEATURES = {
    "image": tf.io.FixedLenFeature((8, 8, 1), tf.float32),
    "label": tf.io.FixedLenFeature((), tf.int64),
}


class CustomModel(keras.Model):
    """{"image": float32[n, 8, 8, 1]} -> logits [n, 10]."""

    def __init__(self, filters=16):
        super().__init__()
        self.convolutions = [
            layers.Conv2D(filters, 3, padding="same", use_bias=False) for _ in range(2)
        ]
        self.norms = [layers.BatchNormalization(momentum=0.9) for _ in range(2)]
        self.pool = layers.MaxPooling2D(2)
        self.flatten = layers.Flatten()
        self.out = layers.Dense(10)

    def call(self, inputs, training=False):
        """Logits."""
        values = inputs["image"] / 16
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            values = keras.ops.relu(norm(convolution(values), training=training))
        return self.out(self.flatten(self.pool(values)))


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.02):
    """SGD with Nesterov's momentum."""
    return keras.optimizers.SGD(lr, momentum=0.9, nesterov=True)


def feed(dataset, mode, metadata):
    """Serialized tf.train.Example -> ({"image": ...}, label)."""

    def parse(record):
        example = tf.io.parse_single_example(record, FEATURES)
        features = {"image": example["image"]}
        return features if mode == "prediction" else (features, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    """Share of right digits."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
