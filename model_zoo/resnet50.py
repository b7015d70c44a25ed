"""ResNet50, with its 23 million weights, on the small images of cifar10.py.

After He et al., Deep Residual Learning for Image Recognition (2015). `keras.applications.ResNet50`
differs in details, such as a bias in each convolution.
"""

import keras
from cifar10 import CLASSES, SHAPE, eval_metrics_fn, feed, loss  # noqa: F401
from keras import layers
from resnet20 import convolution, optimizer, shortcut  # noqa: F401


def custom_model(depths="3 4 6 3", filters=64):
    """uint8[n, 32, 32, 3] -> logits [n, 10]; `depths` has the blocks of each stage."""
    image = keras.Input(SHAPE, dtype="uint8", name="image")
    values = convolution(layers.Rescaling(1 / 64, offset=-2)(image), filters, 7, 2)
    values = layers.MaxPooling2D(3, 2, padding="same")(values)
    for stage, depth in enumerate(depths.split()):
        for block in range(int(depth)):
            stride = 2 if stage > 0 and block == 0 else 1
            values = _bottleneck(values, filters << stage, stride)
    values = layers.GlobalAveragePooling2D()(values)
    return keras.Model(image, layers.Dense(CLASSES, name="label")(values))


def _bottleneck(values, filters, stride):
    inner = convolution(values, filters, 1, stride)
    inner = convolution(inner, filters, 3)
    inner = convolution(inner, 4 * filters, 1, activate=False)
    return layers.ReLU()(layers.Add()([inner, shortcut(values, 4 * filters, stride)]))
