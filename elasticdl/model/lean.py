"""What Keras brings along, takes long and hardly anybody uses, is imported when it is used first.

`keras.wrappers` imports scikit-learn wherever that is installed, and with it most of SciPy: a fifth of the time that TensorFlow and
Keras take together, in the check and in each worker.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import final

_LATER = frozenset({"keras.wrappers", "keras._tf_keras.keras.wrappers"})


@final
class _Later(MetaPathFinder):
    """The standard library's own lazy loader, for these modules. Where a Keras has none of them, nothing is changed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if fullname not in _LATER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_keras_leanly() -> None:
    """Holds for imports of Keras from now on, whoever does them."""
    if not any(isinstance(finder, _Later) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Later())
