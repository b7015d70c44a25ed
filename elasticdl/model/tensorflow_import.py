"""Import TensorFlow and Keras faster.

The import takes most of the time that a process spends before its first step.
"""

from __future__ import annotations

import os
import sys

from elasticdl.deferred_import import executed_at_first_use
from elasticdl.paused_collection import paused_collection

_LATER = frozenset({"keras.wrappers", "keras._tf_keras.keras.wrappers"})
"""They import scikit-learn if it is there, and with it SciPy: 0.7 s and 60 MB in each worker."""


def load_tensorflow() -> None:
    """Import TensorFlow and Keras, with a quarter less work than plain imports.

    Blocks for seconds, or returns at once if they are imported already.
    """
    if "tensorflow" in sys.modules:
        return
    # Several workers may share a GPU, and NCCL needs some of its memory. By default TensorFlow
    # takes all of it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    with executed_at_first_use(_LATER), paused_collection():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401
