"""Make a zoo's folder a package, so that its modules import each other as `model_zoo.iris`, too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import final


@final
class ZooPackage:
    """Finds the package that is the zoo itself; the zoo's parent does not come onto the path."""

    def __init__(self, zoo: Path) -> None:
        self._zoo = zoo

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._zoo.name:
            return None
        init, within = self._zoo / "__init__.py", [str(self._zoo)]
        if init.is_file():
            return spec_from_file_location(name, init, submodule_search_locations=within)
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = within
        return spec


_zoos: set[Path] = set()


def put_first(zoo: Path) -> bool:
    """Make the zoo importable by its name, for this zoo only; return whether it is.

    An installed module of that name remains the one that is imported.
    """
    _zoos.add(zoo)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ZooPackage)]
    if not zoo.name.isidentifier() or is_installed(zoo.name, zoo):
        return False
    sys.meta_path.insert(0, ZooPackage(zoo))
    return True


def hides_installed(zoo: Path) -> bool:
    """Whether a package in the zoo has the name of an installed one."""
    folders = (init.parent.name for init in zoo.glob("*/__init__.py"))
    return any(is_installed(name, zoo) for name in folders)


def is_installed(name: str, zoo: Path) -> bool:
    """Whether a module of this name, with a file or built in, is outside the zoo."""
    # Neither the working directory nor zoos that were loaded before are installed.
    left_out = {zoo, Path.cwd(), *_zoos}
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() not in left_out]
    spec = (
        BuiltinImporter.find_spec(name)
        or FrozenImporter.find_spec(name)
        or PathFinder.find_spec(name, elsewhere)
    )
    if spec is None or spec.origin is None:
        return False
    return not (spec.has_location and Path(spec.origin).resolve().is_relative_to(zoo))
