"""Check the folder of `--output` before anything starts.

Two jobs never mix their predictions, and no export removes a user's files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

from elasticdl.addresses import is_address
from elasticdl.errors import SpecError, UserError
from elasticdl.jobdir.layout import names_in_job_directory

if TYPE_CHECKING:
    from elasticdl.job import JobSpec

_OF_AN_EXPORT = frozenset(
    (
        "saved_model.pb",
        "fingerprint.pb",
        "keras_metadata.pb",
        "model.weights.h5",
        "variables",
        "assets",
        "assets.extra",
    )
)
RUN_PREFIX = "elasticdl-run-"
"""Of the name of the file in a numbered export that names the run of the job that made it."""
_OF_A_VOLUME = "lost+found"
_MOST_NAMED = 3
_NUMBERED = "with --export-seconds, choose a new folder, or one with only numbered exports"


def refuse_output(spec: JobSpec) -> None:
    """Raise SpecError if the job must not write to its output folder. Create nothing.

    Predictions need a new or empty folder. An export replaces an earlier export as a whole; it
    refuses a folder with anything else, and one with other files of this job. Numbered exports
    follow those that are there. A resumed job needs no check of the contents: they may be its own.
    """
    place = spec.checkpoint.output
    _refuse_own_places(spec)
    # `refuse_output_address` looks at an object store, once the processes run where they are.
    if not place or is_address(place) or spec.action == "evaluate":
        return
    path = Path(place)
    try:
        _refuse(spec, path)
    except OSError as error:  # a name that is too long, or a folder without permission
        raise _unusable(path, error) from error


def _refuse_own_places(spec: JobSpec) -> None:
    """Refuse a folder of exports that has, or will have, other files of the job.

    An export replaces its folder as a whole, and would remove checkpoints and journal.
    """
    if not spec.checkpoint.output or spec.action != "train":
        return
    output, kept = _resolved(spec.checkpoint.output), spec.checkpoint
    numbered = bool(kept.export_seconds)
    if numbered and is_address(kept.output):
        return  # Numbered exports replace nothing else there.
    why = (
        "only numbered exports may be there"
        if numbered
        else "an export replaces the whole directory"
    )
    hint = "choose a directory that has only the export"
    for flag, place in (
        ("--job-dir", spec.cluster.job_dir),
        ("--checkpoint-dir", kept.checkpoint_dir),
        ("--tensorboard-log-dir", kept.tensorboard_log_dir),
    ):
        if not place or not (other := _resolved(place)).is_relative_to(output):
            continue
        relation = "is also" if other == output else "contains"
        raise SpecError(
            f"--output {kept.output} {relation} {flag} {place}, but {why}",
            hint=f"{hint}, such as {kept.output.rstrip('/')}/export",
        )
    job_dir = spec.cluster.job_dir
    if job_dir and output.is_relative_to(_resolved(job_dir)):
        name = output.relative_to(_resolved(job_dir)).parts[0]
        if name in names_in_job_directory():
            raise SpecError(
                f"--output {kept.output} is a part of --job-dir: the job keeps its {name} there",
                hint=f"{hint}, such as {job_dir.rstrip('/')}/export",
            )


def _resolved(place: str) -> PurePath:
    """A path without links and `..`, or an address, to compare it with others."""
    return PurePosixPath(place) if is_address(place) else Path(os.path.realpath(place))


def _refuse(spec: JobSpec, path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise SpecError(f"--output {path} is a file", hint="choose a new or empty directory")
    if spec.action == "predict":
        _refuse_mixed(path)
    elif path.exists() and spec.checkpoint.export_seconds:
        _refuse_to_add(path)
    elif path.exists():
        _refuse_to_replace(path)


def last_export(spec: JobSpec) -> int:
    """The highest number of an export's folder below --output; 0 if there is none.

    Raises SpecError if the folder cannot be read, and the errors of `Store.listed`.
    """
    place = spec.checkpoint.output
    if not place or not spec.checkpoint.export_seconds:
        return 0
    if is_address(place):
        from elasticdl.storage import folders

        names = folders.names_in(place)
    else:
        try:
            names = names_in(Path(place))
        except OSError as error:
            raise _unusable(Path(place), error) from error
    return max((number for name in names if (number := export_number(name)) is not None), default=0)


def export_number(name: str) -> int | None:
    """The number of the export whose folder has this name; None if it is no such name.

    A number has no zeros before it and fits into 64 bits, as TensorFlow Serving's versions do.
    """
    if not (name.isascii() and name.isdigit()):
        return None
    number = int(name)
    return number if name == str(number) and number < 1 << 63 else None


def _is_number(name: str) -> bool:
    return export_number(name) is not None


def _is_of_an_export(name: str) -> bool:
    return name in _OF_AN_EXPORT or name.startswith(RUN_PREFIX)


def _unusable(path: Path, error: OSError) -> SpecError:
    return SpecError(
        f"--output {path} cannot be used: {error.strerror or error}",
        hint="choose another --output",
    )


def _refuse_to_add(path: Path) -> None:
    """Refuse a folder that numbered exports cannot be added to."""
    if not os.access(path, os.W_OK | os.X_OK):
        raise SpecError(f"no permission to write to --output {path}", hint="choose another folder")
    if foreign := [name for name in names_in(path) if not _is_number(name)]:
        raise SpecError(_not_numbered(str(path), foreign), hint=_NUMBERED)


def _not_numbered(place: str, foreign: Iterable[str]) -> str:
    return f"--output {place} contains {_listed(foreign)}, which is no numbered export"


def _refuse_mixed(path: Path) -> None:
    there = names_in(path)
    if there:
        raise SpecError(
            f"--output {path} is not empty: it contains {_listed(there)}, which this job's"
            " predictions would mix with",
            hint="choose a new or empty directory, or remove these files",
        )


def _refuse_to_replace(path: Path) -> None:
    if why := _why_fixed(path):
        raise SpecError(
            f"--output {path} cannot be replaced as a whole, which an export requires: {why}",
            hint=f"choose a directory below it, such as {path / 'export'}",
        )
    names = names_in(path)
    _refuse_to_replace_numbered(str(path), names)
    foreign = [name for name in names if not _is_of_an_export(name)]
    if foreign:
        raise SpecError(
            f"--output {path} contains {_listed(foreign)}, which is not from an earlier export; the"
            " export replaces the whole directory",
            hint=(
                "choose a new directory, or one with only an earlier export, such as"
                f" {path / 'export'}"
            ),
        )


def _refuse_to_replace_numbered(place: str, names: Iterable[str]) -> None:
    if exports := [name for name in names if _is_number(name)]:
        raise SpecError(
            f"--output {place} contains numbered exports ({_listed(exports)}); without"
            " --export-seconds the export replaces the whole folder",
            hint="set --export-seconds, or choose another --output",
        )


def refuse_output_address(spec: JobSpec, *, again: bool = False) -> None:
    """Raise UserError if `--output` is an address that the job cannot or must not write to.

    TransientError: the store does not answer. A resumed job, and one that a new master begins
    `again`, may find results of its own.
    """
    place = spec.checkpoint.output
    if not is_address(place) or spec.action == "evaluate":
        return
    from elasticdl.storage import folders

    there = folders.names_in(place)
    own = again or spec.checkpoint.resume
    if spec.action == "predict" and there and not own:
        raise UserError(
            f"--output {place} is not empty: it contains {_listed(there)}, which this job's"
            " predictions would mix with",
            hint="choose a new or empty folder, or remove these objects",
        )
    numbered = bool(spec.checkpoint.export_seconds)
    belongs = _is_number if numbered else _is_of_an_export
    foreign = [name for name in there if not belongs(name)]
    if foreign and numbered and not own:
        raise UserError(_not_numbered(place, foreign), hint=_NUMBERED)
    if not numbered and spec.action == "train":
        _refuse_to_replace_numbered(place, there)
    if foreign and not own:
        raise UserError(
            f"--output {place} contains {_listed(foreign)}, which is not from an earlier export;"
            " the export replaces the whole folder",
            hint="choose a new folder, or one with only an earlier export",
        )
    folders.try_to_write(place)


def _why_fixed(path: Path) -> str | None:
    """Return why a directory cannot be renamed; None if it can."""
    if path.is_symlink():
        return "it is a link"
    if path.is_mount():
        return "it is the root of a volume"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"no permission to write to {path.parent}"
    return None


def names_in(path: Path) -> list[str]:
    """Return the names in a folder.

    Hidden files do not count, since readers of results ignore them. Raises OSError.
    """
    try:
        return sorted(
            name for name in os.listdir(path) if not name.startswith(".") and name != _OF_A_VOLUME
        )
    except FileNotFoundError:
        return []


def _listed(names: Iterable[str]) -> str:
    first, *others = [*names]
    named = ", ".join((first, *others[: _MOST_NAMED - 1]))
    more = len(others) + 1 - _MOST_NAMED
    return f"{named} and {more:,} more" if more > 0 else named
