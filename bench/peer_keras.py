"""Plain Keras `fit` of the same module in one process: `python -m bench.peer_keras OPTIMIZER BATCH`
prints samples/s.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import statistics
import sys
import time

from bench.deepfm_data import batches
from bench.zoo import deepfm


def main(optimizer: str, batch: int) -> None:
    count = max(8, min(64, 100_000 // batch))
    data = batches(batch, count).map(
        lambda features, labels: ({"numbers": features[0], "ids": features[1]}, labels)
    )
    model = deepfm.custom_model()
    model.compile(optimizer=deepfm.optimizer(optimizer), loss=deepfm.loss)

    def steps(number: int) -> float:
        begin = time.perf_counter()
        model.fit(data, steps_per_epoch=number, epochs=1, verbose=0)
        return time.perf_counter() - begin

    steps(2)
    number = max(4, min(200, int(2.0 / (steps(3) / 3))))
    print(statistics.median(number * batch / steps(number) for _ in range(5)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
