"""Import TensorFlow and Keras faster.

The import takes most of the time that a process spends before its first step.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager

from elasticdl.deferred_import import executed_at_first_use
from elasticdl.paused_collection import paused_collection

_LATER = frozenset(
    {
        # They import scikit-learn if it is there, and with it SciPy.
        "keras.wrappers",
        "keras._tf_keras.keras.wrappers",
        # Of the Keras that is a part of TensorFlow: a training loop of TensorFlow 1, with SciPy.
        "tensorflow.python.keras.engine.training_v1",
        # With the schema of its files and an operation of its own.
        "tensorflow._api.v2.lite",
        "tensorflow._api.v2.test",
        "tensorflow._api.v2.__internal__.test",
        "tensorflow._api.v2.__internal__.distribute.combinations",
        "tensorflow._api.v2.__internal__.distribute.multi_process_runner",
    }
)
_PARTS_LATER = frozenset({"tensorflow._api.v2.compat.v1", "tensorflow._api.v2.compat.v2"})
"""Each is the whole public API once more, and has both once more as a part."""
_NOW = {"tensorflow._api.v2.lite": "tensorflow.lite"}
"""The first import of the package `tensorflow.lite` makes it `tf.lite`, so it must come before the
module of the API does.
"""


def without_unused_parts() -> AbstractContextManager[None]:
    """In the body, an import of TensorFlow leaves out what jobs never use, until its first use."""
    return executed_at_first_use(_LATER, _PARTS_LATER, _NOW)


def load_tensorflow() -> None:
    """Import TensorFlow and Keras, with half the work of plain imports if scikit-learn is there.

    Blocks for seconds, or returns at once if they are imported already.
    """
    if "tensorflow" in sys.modules:
        return
    # Several workers may share a GPU, and NCCL needs some of its memory. By default TensorFlow
    # takes all of it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    with without_unused_parts(), paused_collection():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401
