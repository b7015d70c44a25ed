"""Whether a checkpoint fits the model that a module makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from elasticdl.checkpoint import directories, ring_file
from elasticdl.checkpoint.ring_file import ArrayShape
from elasticdl.embedding.fits import check_fits
from elasticdl.errors import UserError
from elasticdl.model.ps_model import PsModel
from elasticdl.model.ring_model import MODEL, OPTIMIZER, RingModel

_HINT = "use the module and --model-params of the job that made the checkpoint"


def check_checkpoint(
    directory: Path, ps_model: PsModel, ring: RingModel | None, *, trains: bool
) -> None:
    """Compare the model with the specs in a checkpoint, without reading its values.

    A checkpoint of the other strategy is not compared. A ring that `trains` restores the optimizer,
    too. Raises UserError for the first variable that differs, Corrupted.
    """
    manifest = directories.read_manifest(directory)
    if manifest.parameters is not None and ring is None:
        check_fits(manifest.parameters, ps_model.parameters, str(directory))
    if manifest.parameters is None and ring is not None:
        # The names of random generators may depend on what else a process has made.
        parts = (MODEL, OPTIMIZER) if trains else (MODEL,)
        mine = {
            name: ArrayShape(tuple(variable.shape), variable.dtype)
            for name, variable in ring.state().items()
            if name.startswith(parts)
        }
        saved = ring_file.shapes(directory)
        check_arrays(
            directory, {name: saved[name] for name in saved if name.startswith(parts)}, mine
        )


def check_arrays(
    where: Path | str, saved: Mapping[str, ArrayShape], mine: Mapping[str, ArrayShape]
) -> None:
    """Raise UserError for the first array of a ring's checkpoint that does not match the model."""
    for name, array in mine.items():
        there = saved.get(name)
        if there != array:
            what = "no such variable" if there is None else str(there)
            raise UserError(
                f"{where} belongs to another model: {name} has {array} here, and {what} there",
                hint=_HINT,
            )
    if extra := [name for name in saved if name not in mine]:
        raise UserError(
            f"{where} belongs to another model: it has variable {extra[0]}, which this model lacks",
            hint=_HINT,
        )
