"""MNIST as a subclassed model: `--model-def mnist_subclass.CustomModel`.

The data and the other functions are those of mnist.py.
"""

import keras
from keras import layers
from mnist import CLASSES, eval_metrics_fn, feed, loss  # noqa: F401


class CustomModel(keras.Model):
    """uint8[n, 28, 28] -> logits [n, 10]."""

    def __init__(self, filters=16, dropout=0.2):
        super().__init__()
        self.scale = layers.Rescaling(1 / 64, offset=-2)
        self.convolution = layers.Conv2D(filters, 5, strides=2, use_bias=False)
        self.norm = layers.BatchNormalization(momentum=0.9)
        self.pool = layers.MaxPooling2D(2)
        self.flatten = layers.Flatten()
        self.dropout = layers.Dropout(dropout)
        self.out = layers.Dense(CLASSES)

    def call(self, inputs, training=False):
        """Logits."""
        values = self.convolution(self.scale(inputs)[..., None])
        values = self.pool(keras.ops.relu(self.norm(values, training=training)))
        return self.out(self.dropout(self.flatten(values), training=training))


def optimizer(lr=0.05):
    """SGD with momentum."""
    return keras.optimizers.SGD(lr, momentum=0.9)
