"""Import many modules without the garbage collections that would look for garbage in them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Disable garbage collection in the body and freeze its objects: all of them stay for good.

    Measured: 0.55 s of an import of TensorFlow that takes 3.9 s, 0.12 s of the start of a master
    that takes 1.05 s, and less in each full collection of the process.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
