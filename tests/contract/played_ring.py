"""A ring whose other members a test plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from elasticdl.worker.ring.base import RingBroken


class PlayedRing:
    """`met` says what members gathered, or raises an OSError where the ring breaks.

    Nothing is summed.
    """

    def met(self, name: str, mine: Any) -> None:
        raise NotImplementedError

    def enter(self, place: Any) -> None: ...

    def leave(self) -> None: ...

    def reduced(self, name: str, tensor: Any) -> None:
        raise AssertionError("nothing is summed")

    def gathered(self, name: str, tensor: Any) -> Any:
        made = tf.py_function(lambda mine: self.met(name, mine), [tensor], tensor.dtype)
        made.set_shape([None, *tensor.shape[1:]])
        return made

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise RingBroken("the peer is gone") from error
