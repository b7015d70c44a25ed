"""The range of workers that a user set while the job ran.

It outlives the master, so that a resumed job starts with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from elasticdl.jobdir.layout import JobDirectory, read_json, write_json

if TYPE_CHECKING:
    from elasticdl.flag_values import WorkerRange
    from elasticdl.job import JobSpec

_LOG = logging.getLogger(__name__)


def keep_scale(directory: JobDirectory, asked: WorkerRange, low: int, high: int) -> None:
    """Save a new range; `asked` is the job's initial range.

    If the disk refuses the write, a resumed job starts with its initial range.
    """
    scaled = _range(low, high)
    instead_of = {*_instead_of(read_json(directory.scale)), str(asked)} - {str(scaled)}
    try:
        write_json(directory.scale, {"num_workers": str(scaled), "instead_of": sorted(instead_of)})
    except OSError as error:
        _LOG.warning(
            "cannot save to %s that the job was scaled to %s: %s", directory.scale, scaled, error
        )


def read_scale_override(directory: JobDirectory) -> str:
    """Return the range that the job was scaled to, as a user types it; '' if it was not scaled."""
    return str(read_json(directory.scale).get("num_workers", ""))


def as_scaled(spec: JobSpec, directory: JobDirectory, *, anew: bool) -> tuple[JobSpec, str]:
    """Return the job to resume, and a message for the user; '' if nothing changed.

    The scaled range applies unless the user now gives another one: by a flag (`anew`), or by a
    file whose range the job never had before it was scaled.
    """
    scaled, asked = read_scale_override(directory), str(spec.cluster.num_workers)
    instead_of = _instead_of(read_json(directory.scale))
    if anew or not scaled or asked == scaled or asked not in instead_of:
        return spec, ""
    try:
        workers = _parsed(scaled)
    except ValueError:
        return spec, ""
    return (
        spec.replace(num_workers=workers),
        (
            f"the job continues with {scaled} workers, to which it was scaled, instead of its"
            " --num-workers"
        ),
    )


def forget_scale_unless(spec: JobSpec, directory: JobDirectory) -> None:
    """Delete the saved range if the job starts with a different one.

    Raises OSError.
    """
    if read_scale_override(directory) != str(spec.cluster.num_workers):
        directory.scale.unlink(missing_ok=True)


def _range(low: int, high: int) -> WorkerRange:
    from elasticdl.flag_values import WorkerRange

    return WorkerRange(low=low, high=high)


def _parsed(text: str) -> WorkerRange:
    from elasticdl.flag_values import WorkerRange

    return WorkerRange.model_validate(WorkerRange.parse(text))


def _instead_of(kept: dict[str, Any]) -> list[str]:
    return [str(one) for one in kept.get("instead_of") or ()]
