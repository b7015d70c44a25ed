"""Generate images with a planted pattern per class, shifted and with noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIZE, CHANNELS, CLASSES = 16, 3, 10
NOISE = 1.2


def draw(records: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images float32[records, 16, 16, 3] and labels int64[records]; the patterns are
    constant.
    """
    patterns = np.random.default_rng(0).normal(0, 1, (CLASSES, 8, 8, CHANNELS))
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, records)
    image = rng.normal(0, NOISE, (records, SIZE, SIZE, CHANNELS))
    top, left = rng.integers(0, SIZE - 8 + 1, (2, records))
    for record in range(records):
        y, x = top[record], left[record]
        image[record, y : y + 8, x : x + 8] += patterns[label[record]]
    return image.astype(np.float32), label


def write(folder: Path, records: int = 8192) -> None:
    """`train.npz` with `records`, `test.npz` with 2,048 of them."""
    for name, count, seed in (("train", records, 1), ("test", 2048, 2)):
        image, label = draw(count, seed)
        np.savez(folder / f"{name}.npz", image=image, label=label)
