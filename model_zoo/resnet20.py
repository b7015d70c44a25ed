"""ResNet20 on the data of cifar10.py, with a learning rate that falls as a cosine.

After He et al., Deep Residual Learning for Image Recognition (2015), with a projection where the
shape changes. `blocks` 3 gives 20 layers, 9 gives 56.
"""

import keras
from cifar10 import CLASSES, SHAPE, eval_metrics_fn, feed, loss  # noqa: F401
from keras import layers


def custom_model(blocks=3, filters=16):
    """uint8[n, 32, 32, 3] -> logits [n, 10]."""
    image = keras.Input(SHAPE, dtype="uint8", name="image")
    values = convolution(layers.Rescaling(1 / 64, offset=-2)(image), filters, 3)
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            values = _residual(values, filters << stage, stride)
    values = layers.GlobalAveragePooling2D()(values)
    return keras.Model(image, layers.Dense(CLASSES, name="label")(values))


def convolution(values, filters, kernel, stride=1, activate=True):
    """Convolution, batch normalization and ReLU: [n, h, w, any] -> [n, h', w', filters]."""
    values = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(values)
    values = layers.BatchNormalization(momentum=0.9)(values)
    return layers.ReLU()(values) if activate else values


def shortcut(values, filters, stride):
    """`values`, through a projection if a block changes their shape."""
    if stride == 1 and values.shape[-1] == filters:
        return values
    return convolution(values, filters, 1, stride, activate=False)


def _residual(values, filters, stride):
    inner = convolution(values, filters, 3, stride)
    inner = convolution(inner, filters, 3, activate=False)
    return layers.ReLU()(layers.Add()([inner, shortcut(values, filters, stride)]))


def optimizer(lr=0.1, steps=1000):
    """SGD with Nesterov's momentum; the rate reaches 0 after `steps` steps."""
    decay = keras.optimizers.schedules.CosineDecay(lr, steps)
    return keras.optimizers.SGD(decay, momentum=0.9, nesterov=True)
