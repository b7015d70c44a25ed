"""ResNet20 for images of CIFAR's shape, as a user would write it.

He et al. 2015, with projections where shapes change.
"""

import keras
from keras import layers

from bench.step_log import StepLog


def custom_model():
    image = keras.Input((32, 32, 3), name="image")
    x = _block(image, 16)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        for number in range(3):
            step = stride if number == 0 else 1
            y = _block(_block(x, filters, step), filters, activate=False)
            same = step == 1 and x.shape[-1] == filters
            x = layers.ReLU()(
                layers.Add()([y, x if same else _block(x, filters, step, 1, activate=False)])
            )
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def _block(x, filters, stride=1, kernel=3, *, activate=True):
    x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if activate else x


def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer():
    return keras.optimizers.SGD(0.01, momentum=0.9)


def feed_batch(records, mode, metadata):
    return records["image"], records["label"]


def callbacks():
    return [StepLog()]
