"""Find the file of a model module without importing it, so that a wrong name fails at once."""

from __future__ import annotations

import difflib
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
        return "custom_data_reader" not in text and "import *" not in text


def module_file(section: ModelSection) -> ModuleFile:
    """Find `--model-def` in `--model-zoo`; the longest prefix that is a module wins.

    Raises UserError if there is no such directory or module.
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
                return ModuleFile(zoo, ".".join(parts[:length]), path, attribute)
    raise UserError(
        f"--model-def {section.model_def!r}: no such module in {zoo}",
        hint=_available(zoo, section.model_def),
    )


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
