"""Datasets that Hugging Face `datasets` saved to disk: which files of a folder hold the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from elasticdl.data.files import DataFile
from elasticdl.errors import UserError

_INFO, _STATE, _SPLITS = "dataset_info.json", "state.json", "dataset_dict.json"


def saved_files(
    folder: str, paths: Sequence[str], look_at: Callable[[str], DataFile]
) -> tuple[str, ...] | None:
    """The data files of a saved dataset in their order; None if the folder holds none.

    `paths` are all files of the folder. Raises UserError if the folder holds several splits, or
    none that was saved whole.
    """
    by_name = {path.rpartition("/")[2]: path for path in paths}
    if _SPLITS in by_name:
        splits = _read(look_at(by_name[_SPLITS])).get("splits")
        raise UserError(
            f"{folder} has the splits of a data set: {', '.join(map(str, splits or ['none']))}",
            hint=f"name one of them, such as {folder.rstrip('/')}/{splits[0] if splits else '…'}",
        )
    if _INFO not in by_name:
        return None
    if _STATE not in by_name:
        raise UserError(
            f"{folder} has {_INFO} but no {_STATE}, so its files may be of several splits",
            hint="save the data set with save_to_disk, or name the files of one split by a glob",
        )
    state = _read(look_at(by_name[_STATE]))
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UserError(
            f"{folder}: the data set selects records by a file of indices",
            hint="save it with a newer release of datasets, or after flatten_indices()",
        )
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{by_name[_STATE]} does not name the data files") from error
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        raise UserError(
            f"{folder} lacks {missing[0]}, which {_STATE} names"
            if missing
            else f"{folder}: the data set has no records",
            hint="copy or save it again",
        )
    return tuple(by_name[name] for name in names)


def _read(file: DataFile) -> dict[str, Any]:
    with file.opened() as opened:
        data = opened.read(0, file.size_bytes)
    try:
        content = json.loads(data)
    except ValueError as error:
        raise UserError(f"{file.path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file.path} is not an object in JSON")
    return content
