"""Plain Keras `fit` of the same module in one process: `python -m bench.peer_keras OPTIMIZER BATCH
FOLDER`.
"""

from __future__ import annotations

import os
from typing import Any, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.deepfm_data import TRAIN, batches
from bench.learning_curve import report
from bench.zoo import deepfm


def _named(features: Any, labels: Any) -> Any:
    return {"numbers": features[0], "ids": features[1]}, labels


@final
class KerasFit:
    def __init__(self, optimizer: str, batch: int, folder: Path) -> None:
        self._folder, self._batch, self._steps = folder, batch, 0
        self._model = deepfm.custom_model()
        self._model.compile(optimizer=deepfm.optimizer(optimizer), loss=deepfm.loss)

    def advance(self, steps: int) -> None:
        # `fit` takes no iterator of tf.data, and begins a dataset anew with each call.
        data = batches(self._folder, self._batch, self._steps % (TRAIN // self._batch))
        self._model.fit(data.map(_named), steps_per_epoch=steps, epochs=1, verbose=0)
        self._steps += steps

    def logits(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        features: Any = {"numbers": dense, "ids": ids}
        return np.asarray(self._model.predict_on_batch(features))


if __name__ == "__main__":
    batch = int(sys.argv[2])
    report(KerasFit(sys.argv[1], batch, Path(sys.argv[3])), batch, Path(sys.argv[3]))
