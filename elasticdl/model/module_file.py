"""Find the file of a model module without importing it, so that a wrong name fails at once."""

from __future__ import annotations

import ast
import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection

_MOST_NAMED = 12
_MOST_FOLDERS = 500
"""Folders of a zoo to look for modules in; `--model-zoo /` has many."""
_NAME_ZOO = "set --model-zoo to the directory that contains the model modules"


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A model module: its dotted name below the zoo, its file, and what builds the model."""

    zoo: Path
    name: str
    path: Path
    attribute: str

    @property
    def reads_files(self) -> bool:
        """Whether its data is certainly read by us: it has no reader of its own."""
        names = _names_of(self)
        return names is not None and "custom_data_reader" not in names.all


def module_file(section: ModelSection) -> ModuleFile:
    """Find `--model-def` in `--model-zoo`; the longest prefix that is a module wins.

    Raises UserError if there is no such directory or module, or if it certainly lacks the function.
    """
    zoo = Path(section.model_zoo).resolve()
    try:
        is_directory = zoo.is_dir()
    except OSError as error:
        raise UserError(
            f"--model-zoo {section.model_zoo!r}: {error.strerror}", hint=_NAME_ZOO
        ) from error
    if not is_directory:
        raise UserError(f"--model-zoo {section.model_zoo!r} is not a directory", hint=_NAME_ZOO)
    parts = section.model_def.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(
            f"--model-def {section.model_def!r} is not a dotted name",
            hint=_dotted(zoo, section.model_def),
        )
    for length in range(len(parts), 0, -1):
        base = zoo.joinpath(*parts[:length])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if _is_file(path):
                rest = parts[length:]
                file = ModuleFile(
                    zoo, ".".join(parts[:length]), path, (rest or ["custom_model"])[0]
                )
                if rest:
                    _check_attribute(file, section.model_def, rest)
                return file
    raise UserError(
        f"--model-def {section.model_def!r}: no such module in {zoo}",
        hint=_available(zoo, section.model_def),
    )


def nearest_first(wanted: str, names: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """Those like the wanted name, then the other names, then `others`."""
    names = [*sorted(names), *sorted(others)]
    near = difflib.get_close_matches(wanted, names)
    return [*dict.fromkeys([*near, *names])][:_MOST_NAMED]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UserError(
            f"--model-def: cannot look for {path}: {error.strerror}",
            hint="give --model-def as `iris` or `mnist.cnn`, and check the rights of --model-zoo",
        ) from error


def _dotted(zoo: Path, model_def: str) -> str:
    """How to write a path as a dotted name, if there is such a file in the zoo."""
    for place in (zoo / model_def, Path(model_def).resolve()):
        with suppress(ValueError, OSError):
            parts = place.relative_to(zoo).with_suffix("").parts
            if all(part.isidentifier() for part in parts) and _is_module(zoo.joinpath(*parts)):
                return f"use dots: --model-def {'.'.join(parts)}"
    return "examples: `iris`, `mnist.cnn`, `mnist.cnn.custom_model`"


def _is_module(base: Path) -> bool:
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def _check_attribute(file: ModuleFile, model_def: str, rest: Sequence[str]) -> None:
    """Raise UserError if the module certainly has no such function, or for several names."""
    names = _names_of(file)
    if names is None or file.attribute in names.all:
        if rest[1:]:
            raise UserError(
                f"--model-def {model_def!r}: {file.name} is a module, and only one name may follow"
                " it",
                hint=f"use {file.name}.{file.attribute}, or bind {'.'.join(rest)} to a name at the"
                f" top of {file.name}",
            )
        return
    others = names.all - names.defined - names.modules
    shown = nearest_first(file.attribute, _public(names.defined), _public(others))
    has = f"it has: {', '.join(shown)}" if shown else "it has no function"
    if file.path.name == "__init__.py":
        has += f"; {_available(file.zoo, model_def)}"
    elif list(rest) == ["py"]:
        has = f"give the module without .py: --model-def {file.name}"
    raise UserError(f"--model-def {model_def!r}: {file.path} has no {file.attribute!r}", hint=has)


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if name[0] != "_"]


@dataclass(frozen=True, slots=True)
class _Names:
    """Names in a module: all, its functions and classes, and the modules that it imports."""

    all: frozenset[str]
    defined: frozenset[str]
    modules: frozenset[str]


def _names_of(file: ModuleFile) -> _Names | None:
    """The names in a module by its text; None if it may have others."""
    try:
        packages = (folder / "__init__.py" for folder in file.path.parents)
        within = [path for path in packages if path.is_relative_to(file.zoo) and path.is_file()]
        trees = [ast.parse(path.read_bytes()) for path in (file.path, *within)]
        if any(_may_bind(node, file.zoo) for tree in trees for node in ast.walk(tree)):
            return None
        nodes = [node for statement in trees[0].body for node in _of_module(statement)]
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None  # The import says what is wrong, with the line.
    return _Names(
        frozenset(name for node in nodes for name in _bound(node)),
        frozenset(node.name for node in nodes if isinstance(node, _DEFINITIONS)),
        frozenset(name for node in nodes if isinstance(node, ast.Import) for name in _bound(node)),
    )


_REACHES_NAMES = {
    *("builtins", "ctypes", "gc", "importlib", "inspect", "runpy", "sys", "unittest"),
    *("__builtins__", "__dict__", "__getattr__", "__globals__", "__import__", "__setattr__"),
    *("eval", "exec", "f_globals", "f_locals", "globals", "locals", "modules", "setattr", "vars"),
}
"""What code can bind a name with that its text does not show."""
_BINDS_NONE = (sys.stdlib_module_names - _REACHES_NAMES) | {
    "elasticdl",
    "keras",
    "numpy",
    "pandas",
    "tensorflow",
}
"""Modules that bind no names in the module that imports them."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _may_bind(node: ast.AST, zoo: Path) -> bool:
    """Whether a node may bind names that are not in the text."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
            return name in _REACHES_NAMES
        case ast.Constant(value=str(text)):
            return text in _REACHES_NAMES
        case ast.Import(names=aliases):
            return any(_binds(alias.name, zoo) for alias in aliases)
        case ast.ImportFrom(module=module, names=aliases, level=level):
            names = {alias.name for alias in aliases}
            return bool(level or _binds(str(module), zoo) or names & {"*", *_REACHES_NAMES})
        case _:
            return False


def _binds(module: str, zoo: Path) -> bool:
    """Whether a module may bind names in one that imports it, as those of the zoo may."""
    top = module.partition(".")[0]
    return top not in _BINDS_NONE or (zoo / top).exists() or (zoo / f"{top}.py").exists()


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it in the module's own scope."""
    yield node
    inner = getattr(node, "body", ()) if isinstance(node, (*_DEFINITIONS, ast.Lambda)) else ()
    for child in ast.iter_child_nodes(node):
        # The body of a lambda is one expression.
        if child is not inner and child not in (inner if isinstance(inner, list) else ()):
            yield from _of_module(child)


def _bound(node: ast.AST) -> Iterable[str]:
    """The names that a node binds in the module's scope."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return (name,)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return (name,)
        case ast.MatchMapping(rest=str(name)):
            return (name,)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            # A function may make names global.
            inner = (inner for inner in ast.walk(node) if isinstance(inner, ast.Global))
            return [node.name, *(name for child in inner for name in child.names)]
        case _:
            return ()


def _available(zoo: Path, wanted: str) -> str:
    """Name modules of the zoo, those whose names are like the wanted one first."""
    names = sorted(_modules(zoo))
    # Its last part may be a function of the module.
    near = [
        name
        for one in (wanted, wanted.rpartition(".")[0])
        for name in difflib.get_close_matches(one, names)
    ]
    shown = [*dict.fromkeys([*near, *names])][:_MOST_NAMED]
    return f"found: {', '.join(shown)}" if shown else "the directory has no Python modules"


def _modules(zoo: Path) -> Iterator[str]:
    """The dotted names of the modules in a zoo, without those of packages."""
    for folder, inner, files in islice(os.walk(zoo), _MOST_FOLDERS):
        inner[:] = sorted(name for name in inner if name.isidentifier() and "__" not in name)
        parts = Path(folder).relative_to(zoo).parts
        for name, dot, suffix in (file.rpartition(".") for file in files):
            if dot and suffix == "py" and name.isidentifier() and "__" not in name:
                yield ".".join((*parts, name))
