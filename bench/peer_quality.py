"""Plain Keras `fit` of `bench/zoo/cnn.py`.

`python -m bench.peer_quality OPTIMIZER DATA BATCH EPOCHS SEED` prints the validation accuracy.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sys
from pathlib import Path

import keras
import numpy as np

from bench.zoo import cnn


def main(optimizer: str, data: Path, batch: int, epochs: int, seed: int) -> None:
    train, test = np.load(data / "train.npz"), np.load(data / "test.npz")
    keras.utils.set_random_seed(seed)
    model = cnn.custom_model()
    steps = epochs * len(train["label"]) // batch
    model.compile(
        optimizer=cnn.optimizer(optimizer, steps=steps),
        loss=cnn.loss,
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    model.fit(train["image"], train["label"], batch_size=batch, epochs=epochs, verbose=0)
    print(model.evaluate(test["image"], test["label"], batch_size=256, verbose=0)[1])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6]))
