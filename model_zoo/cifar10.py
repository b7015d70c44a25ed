"""CIFAR-10 from TFRecord of tf.train.Example: `image` has the 3,072 bytes of 32 x 32 pixels."""

import keras
import tensorflow as tf
from keras import layers

CLASSES, SHAPE = 10, (32, 32, 3)
FEATURES = {
    "image": tf.io.FixedLenFeature((), tf.string),
    "label": tf.io.FixedLenFeature((), tf.int64),
}


def custom_model(filters=16):
    """uint8[n, 32, 32, 3] -> logits [n, 10]."""
    image = keras.Input(SHAPE, dtype="uint8", name="image")
    values = layers.Rescaling(1 / 64, offset=-2)(image)
    for factor in (1, 2, 4):
        values = layers.Conv2D(factor * filters, 3, padding="same", use_bias=False)(values)
        values = layers.MaxPooling2D(2)(layers.BatchNormalization(momentum=0.9)(values))
        values = layers.ReLU()(values)
    values = layers.GlobalAveragePooling2D()(values)
    return keras.Model(image, layers.Dense(CLASSES, name="label")(values))


def loss(labels, predictions):
    """Cross-entropy, a scalar."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.005):
    """Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Serialized tf.train.Example -> (image, label); training flips every second image."""

    def parse(record):
        example = tf.io.parse_single_example(record, FEATURES)
        image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), SHAPE)
        if mode == "training":
            image = tf.image.random_flip_left_right(image)
        return image if mode == "prediction" else (image, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    """Share of right classes."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
