"""Import modules that hardly anybody uses when they are first used."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import MappingProxyType, ModuleType
from typing import Any, final


@contextmanager
def executed_at_first_use(
    names: Collection[str],
    parts_of: Collection[str] = (),
    imported_now: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """In the body, an import of one of these modules makes it, but does not execute it.

    It is executed when one of its own names is first used. `parts_of`: so are the modules of these
    packages. `imported_now` maps such a module to one that is imported when it is made. Absent
    modules are ignored.
    """
    finder = _Later(names, parts_of, imported_now)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@final
class _Later(MetaPathFinder):
    """Finds these modules, and has them executed later."""

    def __init__(
        self, names: Collection[str], parts_of: Collection[str], imported_now: Mapping[str, str]
    ) -> None:
        self._names, self._parts_of, self._imported_now = names, parts_of, imported_now

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names and fullname.rpartition(".")[0] not in self._parts_of:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AtFirstUse(spec.loader)
            if (now := self._imported_now.get(fullname)) is not None:
                importlib.import_module(now)
        return spec


@final
class _AtFirstUse(Loader):
    """Executes a module when one of its own names is first used.

    importlib's LazyLoader does so when anybody reads its `__file__`. AutoGraph reads that of all
    modules, in each worker.

    Its execution must not import a module that takes its place as an attribute of a package, as
    `tensorflow.lite` takes that of `tensorflow._api.v2.lite` in `tensorflow`, unless that one is
    imported before (`imported_now`). Not for a package whose modules import it, as those of
    `requests` do.

    The thread that executes the module holds its lock while it takes the import locks of what the
    module imports. So no module that it imports may use it while another thread imports that one.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        # The thread that executes the module may use it, and others wait.
        self._lock = threading.RLock()
        self._begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader

        def find(name: str) -> Any:  # noqa: ANN401 - whatever a module has
            if name == "__all__" or not name.startswith("__"):
                self._execute(module)
                if vars(module).get("__getattr__") is not find:
                    return getattr(module, name)
                if name in vars(module):  # this thread executes it at the moment
                    return vars(module)[name]
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        def names() -> list[str]:
            self._execute(module)
            return sorted(vars(module))

        vars(module).update({"__getattr__": find, "__dir__": names})

    def _execute(self, module: ModuleType) -> None:
        with self._lock:
            if not self._begun:
                self._begun = True
                names = vars(module)
                before = dict(names)
                try:
                    self._loader.exec_module(module)
                except BaseException:
                    # The next use tries again, of whichever name.
                    for name in names.keys() - before.keys():
                        del names[name]
                    names.update(before)
                    self._begun = False
                    raise
                # A module may have functions of its own in their places.
                for ours in ("__getattr__", "__dir__"):
                    if names.get(ours) is before[ours]:
                        del names[ours]
