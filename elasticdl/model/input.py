"""From windows of records to batches of tensors, through the user's `feed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from elasticdl.data.base import Metadata, Records
from elasticdl.model.module import ModelModule
from elasticdl.shard import Task


def batches(
    windows: Iterable[Records], module: ModelModule, task: Task, metadata: Metadata, *, prefetch: int = 2
) -> Iterator[tuple[Any, Any, int]]:
    """For each window, what `feed` makes of it as one batch: (features, labels, index of the window, from 0).

    A window of which `feed` keeps nothing is skipped: its index does not come. Labels are None in prediction.
    `windows` is read in a background thread, at most `prefetch` batches ahead; closing the generator stops it after the
    window it is at (so `windows` must not block for ever). What `windows` raises is raised here, after the batches before
    it. Leaves are eager TensorFlow tensors.

    Raises:
        UserError: `feed` raised or returned something else than (features, labels); with the user's frames.
    """
    raise NotImplementedError
