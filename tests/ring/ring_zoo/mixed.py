"""exact, with a layer in float32 beside those in float64: what members sum travels as two
vectors.
"""

import keras
from exact import feed, loss, optimizer  # noqa: F401


def custom_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,), dtype="float64"),
            layers.Dense(8, activation="tanh", dtype="float64"),
            layers.Dense(4, dtype="float32"),
            layers.Dense(1, dtype="float64"),
        ]
    )
