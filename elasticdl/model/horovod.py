"""Horovod, which a ring needs; it is built for one TensorFlow."""

from __future__ import annotations

from types import ModuleType

from elasticdl.errors import CannotRun


def horovod() -> ModuleType:
    """Import Horovod and return it. Raises CannotRun if it is missing or does not fit."""
    try:
        import horovod.tensorflow
    except ImportError as error:
        raise CannotRun(
            f"AllreduceStrategy needs Horovod, but its import failed: {error}",
            hint=(
                "run `make horovod` (or scripts/horovod PYTHON): it builds Horovod for this"
                " TensorFlow and installs it, once, in about 3 minutes"
            ),
        ) from error
    found: ModuleType = horovod.tensorflow
    return found
