"""Import TensorFlow and Keras faster.

The import takes most of the time that a process spends before its first step.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, final

from elasticdl.paused_collection import paused_collection

_LATER = frozenset({"keras.wrappers", "keras._tf_keras.keras.wrappers"})


def load_tensorflow() -> None:
    """Import TensorFlow and Keras, with a quarter less work than plain imports.

    Blocks for seconds, or returns at once if they are imported already.
    """
    if "tensorflow" in sys.modules:
        return
    # Several workers may share a GPU, and NCCL needs some of its memory. By default TensorFlow
    # takes all of it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    with _without_wrappers(), paused_collection():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


@final
class _Later(MetaPathFinder):
    """Finds these modules, and has them executed later; it ignores modules that are absent."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _LATER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AtFirstUse(spec.loader)
        return spec


@final
class _AtFirstUse(Loader):
    """Executes a module when one of its own names is first used.

    importlib's LazyLoader does so when anybody reads its `__file__`. AutoGraph reads that of all
    modules, in each worker.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        # The thread that executes the module may use it, and others wait.
        self._lock = threading.RLock()
        self._begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def find(name: str) -> Any:  # noqa: ANN401 - whatever a module has
            if name == "__all__" or not name.startswith("__"):
                self._execute(module)
                if name in vars(module):
                    return vars(module)[name]
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = find

    def _execute(self, module: ModuleType) -> None:
        with self._lock:
            if not self._begun:
                self._begun = True
                try:
                    self._loader.exec_module(module)
                except BaseException:
                    self._begun = False
                    raise
                vars(module).pop("__getattr__", None)


@contextmanager
def _without_wrappers() -> Iterator[None]:
    """In the body, import `keras.wrappers` lazily.

    It imports scikit-learn if that is installed, and with it SciPy: 0.7 s and 60 MB in each worker.
    """
    finder = _Later()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
