"""Images in the shapes of MNIST and CIFAR-10: a planted pattern per class, shifted, with noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
CONTRAST, NOISE = 28.0, 1.5
"""Grey levels of one standard deviation of a pattern; the noise's deviation beside it."""


def mnist(records: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8[records, 28, 28] and labels int64[records]; the patterns are constant."""
    images, labels = draw(patterns(5, 1), records, seed, size=28, shift=2)
    return images[..., 0], labels


def cifar10(records: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8[records, 32, 32, 3] and labels int64[records].

    The patterns are symmetric, so that an image may be flipped, as the photographs may.
    """
    half = patterns(6, 3)
    return draw((half + half[:, :, ::-1]) / np.sqrt(2), records, seed, size=32, shift=4)


def patterns(cells: int, channels: int) -> NDArray[np.float64]:
    """Random cells of 4 x 4 pixels, [CLASSES, 4 * cells, 4 * cells, channels]."""
    coarse = np.random.default_rng(0).normal(0, 1, (CLASSES, cells, cells, channels))
    return coarse.repeat(4, 1).repeat(4, 2)


def draw(
    planted: NDArray[np.float64], records: int, seed: int, *, size: int, shift: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Put the pattern of a random class at most `shift` pixels from the middle of each image."""
    rng = np.random.default_rng(seed)
    side, channels = planted.shape[1], planted.shape[3]
    labels = rng.integers(0, CLASSES, records)
    values = rng.normal(0, NOISE, (records, size, size, channels)).astype(np.float32)
    top, left = (size - side) // 2 + rng.integers(-shift, shift + 1, (2, records))
    for image, label, y, x in zip(values, labels, top, left, strict=True):
        image[y : y + side, x : x + side] += planted[label]
    return (128 + CONTRAST * values).round().clip(0, 255).astype(np.uint8), labels
