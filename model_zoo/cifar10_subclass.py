"""CIFAR-10 as a subclassed model with a layer of its own: `--model-def
cifar10_subclass.CustomModel`.

The data and the other functions are those of cifar10.py.
"""

import keras
from cifar10 import CLASSES, eval_metrics_fn, feed, loss, optimizer  # noqa: F401
from keras import layers


class Block(layers.Layer):
    """A depthwise and a pointwise convolution, batch normalization, and half the size."""

    def __init__(self, filters):
        super().__init__()
        self.convolution = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False)
        self.norm = layers.BatchNormalization(momentum=0.9)
        self.pool = layers.MaxPooling2D(2)

    def call(self, inputs, training=False):
        """[n, h, w, any] -> [n, h / 2, w / 2, filters]."""
        return keras.ops.relu(self.pool(self.norm(self.convolution(inputs), training=training)))


class CustomModel(keras.Model):
    """uint8[n, 32, 32, 3] -> logits [n, 10]."""

    def __init__(self, filters=32):
        super().__init__()
        self.scale = layers.Rescaling(1 / 64, offset=-2)
        self.blocks = [Block(factor * filters) for factor in (1, 2, 2)]
        self.pool = layers.GlobalAveragePooling2D()
        self.out = layers.Dense(CLASSES)

    def call(self, inputs, training=False):
        """Logits."""
        values = self.scale(inputs)
        for block in self.blocks:
            values = block(values, training=training)
        return self.out(self.pool(values))
