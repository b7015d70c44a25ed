"""The files that describe a job: job.json, and job.yaml with its flags, for people and `-f`."""

from __future__ import annotations

from elasticdl.errors import UserError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory, write_atomically
from elasticdl.yaml_documents import as_yaml


def write_flags(spec: JobSpec, directory: JobDirectory) -> None:
    """Write the flags that differ from their defaults to job.yaml. Raises OSError."""
    flags = spec.replace(resume=False).flags(defaults=False)
    write_atomically(directory.yaml, f"# elasticdl {spec.action} -f job.yaml\n{as_yaml(flags)}")


def read_spec(directory: JobDirectory) -> JobSpec:
    """Read job.json. Raises UserError."""
    try:
        return JobSpec.model_validate_json(directory.spec.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the job in {directory.spec}: {error}") from error
