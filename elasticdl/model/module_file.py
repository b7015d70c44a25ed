"""Find the file of a model module without importing it, so that a wrong name fails at once."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection

_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A model module: its dotted name below the zoo, its file, and what builds the model."""

    zoo: Path
    name: str
    path: Path
    attribute: str

    @property
    def reads_files(self) -> bool:
        """Whether its data is certainly read by us: its text names no reader of its own."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return "custom_data_reader" not in text and "import*" not in text.replace(" ", "")


def module_file(section: ModelSection) -> ModuleFile:
    """Find `--model-def` in `--model-zoo`; the longest prefix that is a module wins.

    Raises UserError if there is no such directory or module, or if its text shows that it lacks the
    function.
    """
    zoo = Path(section.model_zoo).resolve()
    if not zoo.is_dir():
        raise UserError(
            f"--model-zoo {section.model_zoo!r} is not a directory",
            hint="set --model-zoo to the directory that contains the model modules",
        )
    parts = section.model_def.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(
            f"--model-def {section.model_def!r} is not a dotted name",
            hint="examples: `iris`, `mnist.cnn`, `mnist.cnn.custom_model`",
        )
    for length in range(len(parts), max(0, len(parts) - 2), -1):
        base = zoo.joinpath(*parts[:length])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                rest = parts[length:]
                attribute = rest[0] if rest else "custom_model"
                file = ModuleFile(zoo, ".".join(parts[:length]), path, attribute)
                if rest:
                    _check_attribute(file, section.model_def)
                return file
    raise UserError(
        f"--model-def {section.model_def!r}: no such module in {zoo}",
        hint=_available(zoo, section.model_def),
    )


def nearest_first(wanted: str, names: Iterable[str]) -> list[str]:
    """The names, those like the wanted one first."""
    names = sorted(names)
    return [*dict.fromkeys([*difflib.get_close_matches(wanted, names), *names])][:_MOST_NAMED]


def _check_attribute(file: ModuleFile, model_def: str) -> None:
    """Raise UserError if the module certainly has no such function, by its text."""
    try:
        text = file.path.read_text(encoding="utf-8")
        nodes = [node for statement in ast.parse(text).body for node in _of_module(statement)]
    except (OSError, ValueError, SyntaxError, RecursionError):
        return  # The import says what is wrong, with the line.
    bound = {name for node in nodes for name in _bound(node)}
    if "*" in bound or file.attribute in bound or any(word in text for word in _BIND_ANY_NAME):
        return
    defined = {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
    shown = nearest_first(file.attribute, (name for name in defined if name[0] != "_"))
    has = f"it defines: {', '.join(shown)}" if shown else "it defines no function"
    modules = f"; {_available(file.zoo, model_def)}" if file.path.name == "__init__.py" else ""
    raise UserError(
        f"--model-def {model_def!r}: {file.path} has no {file.attribute!r}", hint=f"{has}{modules}"
    )


_BIND_ANY_NAME = (
    "globals()",
    "locals()",
    "vars()",
    "__dict__",
    "sys.modules",
    "__getattr__",
    "setattr",
    "exec(",
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it in the module's own scope."""
    yield node
    if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
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
            return [node.name, *(name for one in inner for name in one.names)]
        case _:
            return ()


def _available(zoo: Path, wanted: str) -> str:
    """Name modules of the zoo, those whose names are like the wanted one first."""
    found = (".".join(path.relative_to(zoo).with_suffix("").parts) for path in zoo.glob("**/*.py"))
    names = sorted(name for name in found if "__" not in name)
    # Its last part may be a function of the module.
    near = [
        name
        for one in (wanted, wanted.rpartition(".")[0])
        for name in difflib.get_close_matches(one, names)
    ]
    shown = [*dict.fromkeys([*near, *names])][:_MOST_NAMED]
    return f"found: {', '.join(shown)}" if shown else "the directory has no Python modules"
