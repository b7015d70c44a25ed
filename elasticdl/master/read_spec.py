"""Read the job of a directory."""

from __future__ import annotations

from elasticdl.errors import UserError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory


def read_spec(directory: JobDirectory) -> JobSpec:
    """Read the job of a directory. Raises UserError."""
    try:
        return JobSpec.model_validate_json(directory.spec.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the job in {directory.spec}: {error}") from error
